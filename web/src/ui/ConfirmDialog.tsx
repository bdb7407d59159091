import { useState } from "preact/hooks";
import { t } from "../i18n";
import { Dialog } from "./Dialog";
import { Problem } from "./texts";
import { useSending } from "./useSending";

/** Asks before something that cannot be taken back; with `reason`, for a reason too. */
export function ConfirmDialog({
  title,
  lead,
  reason,
  verb,
  isHarmless = false,
  onConfirm,
  onClose,
}: {
  title: string;
  lead: string;
  /** What the field for the reason is called. */
  reason?: string;
  verb: string;
  isHarmless?: boolean;
  /** Closes the dialog unless it throws. */
  onConfirm: (reason: string) => Promise<void>;
  onClose: () => void;
}) {
  const [text, setText] = useState("");
  const { error, isBusy, send } = useSending();
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          send(async () => {
            await onConfirm(text.trim());
            onClose();
          });
        }}
      >
        <p>{lead}</p>
        {reason && (
          <label>
            <span>{reason}</span>
            <input maxLength={2000} value={text} autoFocus onInput={(event) => setText(event.currentTarget.value)} />
          </label>
        )}
        {error && <Problem error={error} />}
        <footer>
          <button type="button" class="button" autoFocus={!reason} onClick={onClose}>
            {t("action.dismiss")}
          </button>
          <button type="submit" class={`button ${isHarmless ? "primary" : "danger"}`} disabled={isBusy}>
            {verb}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
