import { useEffect, useState } from "preact/hooks";
import { post } from "../api/client";
import { go } from "../app/router";
import { count, visible } from "../format";
import { language, t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { TextField } from "../ui/fields";
import { placed } from "../ui/refusal";
import { Problem } from "../ui/texts";
import { useSending } from "../ui/useSending";
import { bodyOf, type Operation, type Preview, type Wanted } from "./bulk";

const SHOWN = 5;

/** Counts what an operation would act on, asks, starts it, and leads to its page. */
export function BulkDialog({ wanted, onClose }: { wanted: Wanted; onClose: () => void }) {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [speed, setSpeed] = useState("");
  const counting = useSending();
  const { error, isBusy, send } = useSending();
  const { at, rest } = placed(error, ["max_per_sec"]);
  const { action } = wanted;
  const n = preview === null ? "…" : count(preview.count, language.value);

  useEffect(() => {
    counting.send(async () =>
      setPreview((await post("/bulk", { body: bodyOf(wanted, { dry_run: true }) })) as Preview),
    );
  }, []);

  async function start(): Promise<void> {
    const options = speed.trim() ? { max_per_sec: Number(speed) } : {};
    const started = (await post("/bulk", { body: bodyOf(wanted, options) })) as unknown as Operation;
    onClose();
    go(["bulk", started.id]);
  }

  return (
    <FormDialog
      title={t(`bulk.${action}.title`, { n })}
      verb={t(`bulk.${action}.verb`, { n })}
      kind={action === "delete" || action === "cancel" ? "danger" : "primary"}
      isBusy={isBusy || !preview?.count}
      onSubmit={() => send(start)}
      onClose={onClose}
    >
      <p>{t(`bulk.${action}.lead`)}</p>
      {preview === null && !counting.error && <p class="dim loading">{t("bulk.counting")}</p>}
      {preview?.count === 0 && <p class="strong">{t("bulk.nothing")}</p>}
      {preview !== null && preview.count > 0 && <Sample preview={preview} />}
      <TextField
        type="number"
        min={0}
        step="any"
        label={t("bulk.speed")}
        hint={t("bulk.speed.hint")}
        value={speed}
        onChange={setSpeed}
        problem={at("max_per_sec")}
      />
      {(rest ?? counting.error) && <Problem error={(rest ?? counting.error)!} />}
    </FormDialog>
  );
}

function Sample({ preview }: { preview: Preview }) {
  const items = (preview.items as { flow_name?: string | null; run_id?: string | null }[]).slice(0, SHOWN);
  const others = preview.count - items.length;
  return (
    <ul class="bulk-sample">
      {items.map((one, at) => (
        <li key={one.run_id ?? at}>
          {visible(one.flow_name ?? "–")} <span class="mono dim">{visible(one.run_id ?? "")}</span>
        </li>
      ))}
      {others > 0 && <li class="dim">{t("bulk.others", { n: count(others, language.value) })}</li>}
    </ul>
  );
}
