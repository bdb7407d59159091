import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { canAct } from "../app/standing";
import { Glyph, type IconName } from "./icons";

/** A button with several things to do. A click elsewhere, Escape and a choice close it. */
export function Menu({
  label,
  icon,
  isLocal = false,
  children,
}: {
  label: string;
  icon: IconName;
  /** Nothing in it changes the server. */
  isLocal?: boolean;
  children: ComponentChildren;
}) {
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const onClick = (event: Event) => {
      if (!box.current?.firstElementChild?.contains(event.target as Node)) setOpen(false);
    };
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape") setOpen(false);
    };
    document.addEventListener("click", onClick);
    document.addEventListener("keydown", onKey);
    return () => {
      document.removeEventListener("click", onClick);
      document.removeEventListener("keydown", onKey);
    };
  }, [isOpen]);
  return (
    <div class="menu" ref={box}>
      <button
        type="button"
        class="button"
        aria-expanded={isOpen}
        disabled={!isLocal && !canAct.value}
        onClick={() => setOpen(!isOpen)}
      >
        <Glyph name={icon} />
        {label}
        <Glyph name="down" size={12} />
      </button>
      {isOpen && (
        // A dialog gives the focus back to where it was: not to an item that is gone.
        <div class="menu-items" onClickCapture={() => box.current?.querySelector("button")?.focus()}>
          {children}
        </div>
      )}
    </div>
  );
}
