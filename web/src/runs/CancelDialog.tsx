import { post, type Run } from "../api/client";
import { t } from "../i18n";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { toast } from "../ui/toasts";

export function CancelDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  async function cancel(reason: string): Promise<void> {
    await post("/runs/{run_id}/cancel", { path: { run_id: run.run_id }, body: reason ? { reason } : {} });
    toast(t("run.cancel.asked"));
  }

  return (
    <ConfirmDialog
      title={t("run.cancel.title")}
      lead={t("run.cancel.lead")}
      reason={t("run.cancel.reason")}
      verb={t("run.cancel.do")}
      onConfirm={cancel}
      onClose={onClose}
    />
  );
}
