import { useEffect, useState } from "preact/hooks";
import { type GraphSummary, get, post } from "../api/client";
import { go, link } from "../app/router";
import { t } from "../i18n";
import { Dialog } from "../ui/Dialog";
import { Problem } from "../ui/texts";
import { toast } from "../ui/toasts";
import { useIdempotencyKey, useSending } from "../ui/useSending";
import { readJson } from "./commands";

const MOST = 200;

export function StartDialog({ graph, onClose }: { graph?: string; onClose: () => void }) {
  const [graphs, setGraphs] = useState<readonly GraphSummary[] | null>(null);
  const [chosen, setChosen] = useState(graph ?? "");
  const [input, setInput] = useState("{}");
  const [id, setId] = useState("");
  const [reading, setReading] = useState<Error | null>(null);
  const { error, isBusy, send } = useSending();
  const keyFor = useIdempotencyKey();

  useEffect(() => {
    get("/graphs", { query: { limit: MOST } }).then((page) => {
      const sorted = [...page.items].sort((a, b) => a.graph_id.localeCompare(b.graph_id));
      setGraphs(sorted);
      setChosen((known) => known || (sorted[0]?.graph_id ?? ""));
    }, setReading);
  }, []);

  async function start(): Promise<void> {
    const given = readJson(input);
    const body = {
      graph_id: chosen,
      ...(given === undefined ? {} : { input: given }),
      ...(id.trim() ? { execution_id: id.trim() } : {}),
    };
    const made = await post("/executions", { body, headers: keyFor(body) });
    toast(t("start.done"));
    onClose();
    go(["executions", made.execution_id]);
  }

  return (
    <Dialog title={t("executions.new")} onClose={onClose}>
      {graphs?.length === 0 ? (
        <div class="form">
          <p>{t("start.noGraphs")}</p>
          <footer>
            <a class="button primary" href={link(["graphs"])} onClick={onClose}>
              {t("start.toGraphs")}
            </a>
          </footer>
        </div>
      ) : (
        <form
          class="form"
          onSubmit={(event) => {
            event.preventDefault();
            send(start);
          }}
        >
          <label>
            <span>{t("start.graph")}</span>
            <select required value={chosen} onChange={(event) => setChosen(event.currentTarget.value)}>
              {graph && !graphs?.some((one) => one.graph_id === graph) && <option value={graph}>{graph}</option>}
              {(graphs ?? []).map((one) => (
                <option key={one.graph_id} value={one.graph_id}>
                  {one.graph_id} (v{one.version})
                </option>
              ))}
            </select>
          </label>
          <label>
            <span>{t("start.input")}</span>
            <textarea
              rows={7}
              class="mono"
              spellcheck={false}
              value={input}
              onInput={(e) => setInput(e.currentTarget.value)}
            />
          </label>
          <label>
            <span>{t("start.id")}</span>
            <input
              value={id}
              pattern="[A-Za-z0-9_\-]{1,64}"
              placeholder={t("start.id.hint")}
              onInput={(e) => setId(e.currentTarget.value)}
            />
          </label>
          {reading && <Problem error={reading} />}
          {error && (
            <Problem
              error={error instanceof SyntaxError ? new Error(t("start.badJson", { reason: error.message })) : error}
            />
          )}
          <footer>
            <button type="button" class="button" onClick={onClose}>
              {t("action.dismiss")}
            </button>
            <button type="submit" class="button primary" disabled={isBusy || graphs === null}>
              {t("start.do")}
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}
