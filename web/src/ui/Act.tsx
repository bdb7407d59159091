import type { ComponentChildren } from "preact";
import { canAct } from "../app/standing";
import { Glyph, type IconName } from "./icons";

/** A button that changes something on the server. It is off while what the page shows may be out of date. */
export function Act({
  icon,
  kind = "",
  title,
  label,
  disabled = false,
  onClick,
  children,
}: {
  icon: IconName;
  kind?: "" | "primary" | "danger" | "quiet" | "icon";
  title?: string | undefined;
  /** Needed where there are no words. */
  label?: string;
  disabled?: boolean;
  onClick: () => void;
  children?: ComponentChildren;
}) {
  return (
    <button
      type="button"
      class={kind === "icon" ? "icon-button" : `button ${kind}`}
      title={title ?? label}
      aria-label={label}
      disabled={disabled || !canAct.value}
      onClick={onClick}
    >
      <Glyph name={icon} />
      {children}
    </button>
  );
}
