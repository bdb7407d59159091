import { signal } from "../app/signals";
import { t } from "../i18n";
import { Glyph } from "./icons";

interface Toast {
  id: number;
  text: string;
  kind: "good" | "bad";
}

const STAY_MS = 5000;
const MOST = 5;
const toasts = signal<Toast[]>([]);
let last = 0;

/** Good news goes by itself. What went wrong stays until somebody has read it. */
export function toast(text: string, kind: Toast["kind"] = "good"): void {
  const id = ++last;
  toasts.value = [...toasts.value.filter((one) => one.text !== text), { id, text, kind }].slice(-MOST);
  if (kind === "good") setTimeout(() => dismiss(id), STAY_MS);
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <p key={one.id} class={`toast ${one.kind}`}>
          <span>{one.text}</span>
          {one.kind === "bad" && (
            <button type="button" class="icon-button" aria-label={t("action.close")} onClick={() => dismiss(one.id)}>
              <Glyph name="close" />
            </button>
          )}
        </p>
      ))}
    </div>
  );
}
