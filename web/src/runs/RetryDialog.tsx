import { useState } from "preact/hooks";
import { post, type Run } from "../api/client";
import { go } from "../app/router";
import { t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useIdempotencyKey, useSending } from "../ui/useSending";
import { keepable } from "./tries";

const STARTS = ["start", "failed"] as const;
export type Start = (typeof STARTS)[number];

/** An ended run again, as a new run: everything, or what did not succeed. */
export function RetryDialog({ run, first, onClose }: { run: Run; first: Start; onClose: () => void }) {
  const kept = keepable(run);
  const [from, setFrom] = useState<Start>(kept > 0 ? first : "start");
  const { error, isBusy, send } = useSending();
  const keyFor = useIdempotencyKey();

  async function retry(): Promise<void> {
    const body = { from };
    const headers = keyFor(body);
    const answer = await post("/runs/{run_id}/retry", { path: { run_id: run.run_id }, body, headers });
    toast(t("submit.done"));
    onClose();
    go(["runs", answer.run_id]);
  }

  return (
    <FormDialog
      title={t("retry.title")}
      verb={t("retry.do")}
      isBusy={isBusy}
      onSubmit={() => send(retry)}
      onClose={onClose}
    >
      <p>{t("retry.lead")}</p>
      <fieldset class="choices">
        <legend class="sr-only">{t("retry.from")}</legend>
        {STARTS.map((one) => (
          <label key={one} class={one === "failed" && kept === 0 ? "is-off" : undefined}>
            <input
              type="radio"
              name="from"
              checked={from === one}
              disabled={one === "failed" && kept === 0}
              onChange={() => setFrom(one)}
            />
            <strong>{t(`retry.from.${one}`)}</strong>
            <span class="dim">
              {one === "start"
                ? t("retry.from.start.hint")
                : t(kept > 0 ? "retry.keeps" : "retry.keepsNone", { n: kept })}
            </span>
          </label>
        ))}
      </fieldset>
      {error && <Problem error={error} />}
    </FormDialog>
  );
}
