import { useState } from "preact/hooks";
import { post, type Run } from "../api/client";
import { t } from "../i18n";
import { Dialog } from "../ui/Dialog";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";

export function CancelDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);

  async function cancel(): Promise<void> {
    setBusy(true);
    try {
      const body = reason.trim() ? { reason: reason.trim() } : {};
      await post("/runs/{run_id}/cancel", { path: { run_id: run.run_id }, body });
      toast(t("run.cancel.asked"));
      onClose();
    } catch (problem) {
      setError(problem as Error);
      setBusy(false);
    }
  }

  return (
    <Dialog title={t("run.cancel.title")} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          void cancel();
        }}
      >
        <p>{t("run.cancel.lead")}</p>
        <label>
          <span>{t("run.cancel.reason")}</span>
          <input maxLength={2000} value={reason} autoFocus onInput={(e) => setReason(e.currentTarget.value)} />
        </label>
        {error && <Problem error={error} />}
        <footer>
          <button type="button" class="button" onClick={onClose}>
            {t("action.dismiss")}
          </button>
          <button type="submit" class="button danger" disabled={isBusy}>
            {t("run.cancel.do")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
