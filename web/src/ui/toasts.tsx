import { signal } from "@preact/signals";

interface Toast {
  id: number;
  text: string;
  kind: "good" | "bad";
}

const STAY_MS = 5000;
const toasts = signal<Toast[]>([]);
let last = 0;

export function toast(text: string, kind: Toast["kind"] = "good"): void {
  const id = ++last;
  toasts.value = [...toasts.value, { id, text, kind }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((one) => one.id !== id);
  }, STAY_MS);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <p key={one.id} class={`toast ${one.kind}`}>
          {one.text}
        </p>
      ))}
    </div>
  );
}
