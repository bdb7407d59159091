import { useState } from "preact/hooks";
import { post } from "../api/client";
import { go } from "../app/router";
import { t } from "../i18n";
import { Dialog } from "../ui/Dialog";
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
    <Dialog title={like ? t("submit.again") : t("submit.title")} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          send(submit);
        }}
      >
        <label>
          <span>{t("submit.flow")}</span>
          <input required maxLength={200} value={flow} autoFocus onInput={(e) => setFlow(e.currentTarget.value)} />
        </label>
        <label>
          <span>{t("submit.params")}</span>
          <textarea
            rows={8}
            class="mono"
            spellcheck={false}
            value={params}
            onInput={(e) => setParams(e.currentTarget.value)}
          />
        </label>
        <label>
          <span>{t("submit.tag")}</span>
          <input
            value={tag}
            pattern="[A-Za-z0-9_\-]{1,64}"
            placeholder={t("submit.tag.hint")}
            onInput={(e) => setTag(e.currentTarget.value)}
          />
        </label>
        <label>
          <span>{t("submit.tags")}</span>
          <input value={tags} onInput={(e) => setTags(e.currentTarget.value)} />
        </label>
        {error && <Problem error={error} />}
        <footer>
          <button type="button" class="button" onClick={onClose}>
            {t("action.dismiss")}
          </button>
          <button type="submit" class="button primary" disabled={isBusy}>
            {t("submit.do")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
