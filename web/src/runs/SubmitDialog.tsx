import { useState } from "preact/hooks";
import { post } from "../api/client";
import { go } from "../app/router";
import { t } from "../i18n";
import { FormDialog } from "../ui/FormDialog";
import { AreaField, TextField } from "../ui/fields";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useIdempotencyKey, useSending } from "../ui/useSending";
import { readParams, readTags, type Submission } from "./submission";

export function SubmitDialog({ like, onClose }: { like?: Submission; onClose: () => void }) {
  const [flow, setFlow] = useState(like?.flow_name ?? "");
  const [params, setParams] = useState(JSON.stringify(like?.params ?? {}, null, 2));
  const [tag, setTag] = useState(like?.tag ?? "");
  const [tags, setTags] = useState((like?.tags ?? []).join(", "));
  const { error, isBusy, send } = useSending();
  const keyFor = useIdempotencyKey();

  function readObject(): Submission["params"] {
    try {
      return readParams(params, t("submit.notObject"));
    } catch (problem) {
      throw new Error(t("submit.badJson", { reason: (problem as Error).message }));
    }
  }

  function submission(): Submission {
    const found = readTags(tags);
    return {
      flow_name: flow.trim(),
      params: readObject(),
      ...(tag.trim() ? { tag: tag.trim() } : {}),
      ...(found.length ? { tags: found } : {}),
    };
  }

  async function submit(): Promise<void> {
    const body = submission();
    const answer = await post("/runs", { body, headers: keyFor(body) });
    toast(t("submit.done"));
    onClose();
    go(["runs", answer.run_id]);
  }

  return (
    <FormDialog
      title={like ? t("submit.again") : t("submit.title")}
      verb={t("submit.do")}
      isBusy={isBusy}
      onSubmit={() => send(submit)}
      onClose={onClose}
    >
      <TextField label={t("submit.flow")} value={flow} onChange={setFlow} required maxLength={200} autoFocus />
      <AreaField label={t("submit.params")} value={params} onChange={setParams} rows={8} />
      <TextField
        label={t("submit.tag")}
        value={tag}
        onChange={setTag}
        pattern="[A-Za-z0-9_\-]{1,64}"
        placeholder={t("submit.tag.hint")}
      />
      <TextField label={t("submit.tags")} value={tags} onChange={setTags} />
      {error && <Problem error={error} />}
    </FormDialog>
  );
}
