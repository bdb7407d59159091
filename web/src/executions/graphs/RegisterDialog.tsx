import { useState } from "preact/hooks";
import { ApiError, put } from "../../api/client";
import { go } from "../../app/router";
import { visible } from "../../format";
import { t } from "../../i18n";
import { Dialog } from "../../ui/Dialog";
import { Glyph } from "../../ui/icons";
import { Problem } from "../../ui/texts";
import { toast } from "../../ui/toasts";
import { useSending } from "../../ui/useSending";
import { idIn, problemsIn } from "./definition";

const EXAMPLE = `id: monthly-close
nodes:
  extract: {type: task, flow: extract}
  approve: {type: wait, prompt: "Close the month?"}
edges:
  - {from: extract, to: approve}
`;

/** Pasted or dropped YAML becomes the next version of a graph. */
export function RegisterDialog({
  id: known,
  text: start = "",
  onClose,
}: {
  id?: string;
  text?: string;
  onClose: () => void;
}) {
  const [text, setText] = useState(start);
  const [id, setId] = useState(known ?? "");
  const [isOver, setOver] = useState(false);
  const { error, isBusy, send } = useSending();
  const found = id.trim() || idIn(text);

  async function register(): Promise<void> {
    const isJson = text.trimStart().startsWith("{");
    const made = await put("/graphs/{graph_id}", {
      path: { graph_id: found },
      text: { content: text, type: isJson ? "application/json" : "application/yaml" },
    });
    toast(t("graphs.registered", { graph: made.graph_id, version: made.version }));
    onClose();
    go(["graphs", made.graph_id]);
  }

  async function take(file: File | undefined): Promise<void> {
    if (file) setText(await file.text());
  }

  return (
    <Dialog title={t("graphs.register")} onClose={onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          send(register);
        }}
      >
        <label
          class={`paste ${isOver ? "is-over" : ""}`}
          onDragOver={(event) => {
            event.preventDefault();
            setOver(true);
          }}
          onDragLeave={() => setOver(false)}
          onDrop={(event) => {
            event.preventDefault();
            setOver(false);
            void take(event.dataTransfer?.files[0]);
          }}
        >
          <span>{t("graphs.text")}</span>
          <textarea
            rows={14}
            required
            class="mono"
            spellcheck={false}
            placeholder={EXAMPLE}
            value={text}
            autoFocus
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <label class="choose">
          <input
            type="file"
            accept=".yaml,.yml,.json"
            class="sr-only"
            onChange={(event) => void take(event.currentTarget.files?.[0])}
          />
          <span>{t("graphs.choose")}</span>
        </label>
        <label>
          <span>{t("graphs.id")}</span>
          <input
            required
            value={found}
            pattern="[A-Za-z0-9_\-]{1,64}"
            readOnly={known !== undefined}
            onInput={(event) => setId(event.currentTarget.value)}
          />
        </label>
        {error && <Refusal error={error} />}
        <footer>
          <button type="button" class="button" onClick={onClose}>
            {t("action.dismiss")}
          </button>
          <button type="submit" class="button primary" disabled={isBusy}>
            {t("graphs.register.do")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

/** All that is wrong, one line each. */
function Refusal({ error }: { error: Error }) {
  const problems = error instanceof ApiError ? problemsIn(error.detail) : [];
  if (problems.length === 0) return <Problem error={error} />;
  return (
    <div class="problem" role="alert">
      <Glyph name="failed" />
      <div>
        <p>{visible(error.message)}</p>
        <ul class="problems">
          {problems.map((problem) => (
            <li key={problem}>{visible(problem)}</li>
          ))}
        </ul>
      </div>
    </div>
  );
}
