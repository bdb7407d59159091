import { useId, useState } from "preact/hooks";
import { ApiError, post, type Wait } from "../../api/client";
import { visible } from "../../format";
import { t } from "../../i18n";
import { JsonValue } from "../../ui/JsonValue";
import { Problem } from "../../ui/texts";
import { toast } from "../../ui/toasts";
import { useSending } from "../../ui/useSending";
import { readJson } from "../commands";
import type { Definition } from "../graphs/definition";
import { fieldsRead, skeleton, withComment, yesOrNo } from "./answer";
import { refreshInbox } from "./inbox";
import { givenAnswer } from "./refusal";

export type Waiting = Pick<
  Wait,
  "execution_id" | "node_id" | "wait_key" | "prompt" | "resume_data" | "resume_requested_by"
>;

/** Lets a waiting node go on: with yes or no where that is all the graph reads, else with any JSON. */
export function ResumeForm({
  wait,
  definition,
  onDone,
}: {
  wait: Waiting;
  definition: Definition | null;
  onDone: () => Promise<void>;
}) {
  const fields = fieldsRead(definition, wait.node_id);
  const isSimple = fields.length <= 1 && wait.resume_data == null;
  const [isJson, setJson] = useState(!isSimple);
  const [text, setText] = useState<string | null>(null);
  const [comment, setComment] = useState("");
  const { error, isBusy, send } = useSending();
  const keyId = useId();

  async function resume(data: unknown): Promise<void> {
    const path = { execution_id: wait.execution_id, node_id: wait.node_id };
    const body = { ...(data === undefined ? {} : { data }), ...(wait.wait_key ? { resume_key: wait.wait_key } : {}) };
    try {
      await post("/executions/{execution_id}/nodes/{node_id}/resume", { path, body });
    } catch (problem) {
      await report(problem as Error);
      throw problem;
    }
    toast(t("resume.done", { node: visible(wait.node_id) }));
    await Promise.all([refreshInbox(), onDone()]);
  }

  /** Outside of the form as well: that goes as soon as the node does not wait any more. */
  async function report(problem: Error): Promise<void> {
    if (!(problem instanceof ApiError) || problem.status >= 500) return;
    const given = await givenAnswer(wait.execution_id, wait.node_id).catch(() => null);
    const node = visible(wait.node_id);
    const reason = given
      ? t("resume.refused.by", { who: visible(given.who), data: visible(JSON.stringify(given.data ?? null)) })
      : visible(problem.detail || problem.message);
    toast(t("resume.refused", { node, reason }), "bad");
  }

  return (
    <form
      class="form resume"
      aria-label={t("resume.label", { node: visible(wait.node_id) })}
      onSubmit={(event) => {
        event.preventDefault();
        send(async () => resume(readJson(text ?? skeleton(fields, wait.resume_data))));
      }}
    >
      {wait.resume_requested_by && (
        <div class="resume-asked">
          <p>{t("resume.asked", { who: visible(wait.resume_requested_by) })}</p>
          {wait.resume_data != null && <JsonValue value={wait.resume_data} label={t("resume.data")} />}
        </div>
      )}
      {wait.wait_key && (
        <label class="resume-key" htmlFor={keyId}>
          <span>{t("resume.key")}</span>
          <input id={keyId} class="mono" readOnly value={visible(wait.wait_key)} />
        </label>
      )}
      {!isJson && fields[0] !== "" && (
        <label>
          <span>{t("resume.comment")}</span>
          <input maxLength={2000} value={comment} onInput={(event) => setComment(event.currentTarget.value)} />
        </label>
      )}
      {isJson && (
        <label>
          <span>{t("resume.data")}</span>
          <textarea
            rows={5}
            class="mono"
            spellcheck={false}
            value={text ?? skeleton(fields, wait.resume_data)}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
      )}
      {error && (
        <Problem
          error={error instanceof SyntaxError ? new Error(t("resume.badJson", { reason: error.message })) : error}
        />
      )}
      <footer>
        {isSimple && (
          <button type="button" class="button quiet" onClick={() => setJson(!isJson)}>
            {isJson ? t("resume.simple") : t("resume.json")}
          </button>
        )}
        {isJson ? (
          <button type="submit" class="button primary" disabled={isBusy}>
            {t("resume.do")}
          </button>
        ) : (
          [false, true].map((isYes) => (
            <button
              key={String(isYes)}
              type="button"
              class={`button ${isYes ? "primary" : ""}`}
              disabled={isBusy}
              title={JSON.stringify(withComment(yesOrNo(fields, isYes), comment))}
              onClick={() => send(() => resume(withComment(yesOrNo(fields, isYes), comment)))}
            >
              {isYes ? t("resume.yes") : t("resume.no")}
            </button>
          ))
        )}
      </footer>
    </form>
  );
}
