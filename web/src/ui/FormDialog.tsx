import type { ComponentChildren } from "preact";
import { t } from "../i18n";
import { Dialog } from "./Dialog";

/** A form in a dialog: its fields are the children; it is sent or dismissed below them. */
export function FormDialog({
  title,
  verb,
  isBusy,
  kind = "primary",
  isWide = false,
  autoComplete,
  onSubmit,
  onClose,
  children,
}: {
  title: string;
  verb: string;
  isBusy: boolean;
  kind?: "primary" | "danger";
  isWide?: boolean;
  autoComplete?: "off";
  onSubmit: () => void;
  onClose: () => void;
  children: ComponentChildren;
}) {
  return (
    <Dialog title={title} onClose={onClose} isWide={isWide}>
      <form
        class="form"
        autoComplete={autoComplete}
        onSubmit={(event) => {
          event.preventDefault();
          onSubmit();
        }}
      >
        {children}
        <footer>
          <button type="button" class="button" onClick={onClose}>
            {t("action.dismiss")}
          </button>
          <button type="submit" class={`button ${kind}`} disabled={isBusy}>
            {verb}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
