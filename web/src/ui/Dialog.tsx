import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { t } from "../i18n";
import { Glyph } from "./icons";

/** The browser's own modal dialog: it keeps the focus inside, and Escape closes it. */
export function Dialog({
  title,
  onClose,
  isWide = false,
  isSticky = false,
  children,
}: {
  title: string;
  isWide?: boolean;
  /** What it shows cannot be had again: a click beside it is no reason to close it. */
  isSticky?: boolean;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();

  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);

  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: a click beside the dialog closes it; the key for that is Escape
    <dialog
      ref={element}
      class={`dialog ${isWide ? "is-wide" : ""}`}
      aria-labelledby={titleId}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        // The second click of a double click on what opened it is not meant for it.
        if (event.target === element.current && event.detail === 1 && !isSticky) onClose();
      }}
    >
      <div class="dialog-inside">
        <header>
          <h2 id={titleId}>{title}</h2>
          <button type="button" class="icon-button" aria-label={t("action.close")} onClick={onClose}>
            <Glyph name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
