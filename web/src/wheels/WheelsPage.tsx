import { useRef, useState } from "preact/hooks";
import { del, get, request, type Wheel, type WheelEvent } from "../api/client";
import { client } from "../app/commands";
import { bytes, visible } from "../format";
import { t } from "../i18n";
import { usePolling } from "../live/usePolling";
import { ConfirmDialog } from "../ui/ConfirmDialog";
import { Glyph } from "../ui/icons";
import { save } from "../ui/save";
import { Age, Command, Empty, Problem, Tags } from "../ui/texts";
import { toast } from "../ui/toasts";
import { readName, upload } from "./upload";

const REFRESH_MS = 5000;

export function WheelsPage() {
  const wheels = usePolling((signal) => get("/wheels", { signal }), REFRESH_MS, "wheels");
  const history = usePolling((signal) => get("/wheels/history", { signal }), REFRESH_MS, "history");
  const [doomed, setDoomed] = useState<Wheel | null>(null);

  async function changed(): Promise<void> {
    await Promise.all([wheels.refresh(), history.refresh()]);
  }

  return (
    <>
      <header class="page-head">
        <h1>{t("wheels.title")}</h1>
      </header>
      <p class="lead">{t("wheels.lead")}</p>
      <Upload onDone={changed} />
      {wheels.error && <Problem error={wheels.error} />}
      {wheels.value?.length === 0 && (
        <Empty title={t("wheels.empty.title")}>
          <p>{t("wheels.empty.lead")}</p>
          <Command text={client("wheel-upload --wheel-file dist/my_flows-1.0-py3-none-any.whl --tags default")} />
        </Empty>
      )}
      {wheels.value !== null && wheels.value.length > 0 && <WheelTable wheels={wheels.value} onDelete={setDoomed} />}
      <History events={history.value} />
      {doomed && <DeleteDialog wheel={doomed} onClose={() => setDoomed(null)} onDone={changed} />}
    </>
  );
}

function Upload({ onDone }: { onDone: () => Promise<void> }) {
  const input = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const [tags, setTags] = useState("");
  const [sending, setSending] = useState<{ name: string; fraction: number } | null>(null);
  const [error, setError] = useState<Error | null>(null);

  async function take(file: File | undefined): Promise<void> {
    if (!file) return;
    setError(null);
    if (!file.name.endsWith(".whl")) {
      setError(new Error(t("wheels.notAWheel", { name: visible(file.name) })));
      return;
    }
    setSending({ name: file.name, fraction: 0 });
    try {
      await upload(file, tags, (fraction) => setSending({ name: file.name, fraction }));
      toast(t("wheels.uploaded", { name: file.name }));
      await onDone();
    } catch (problem) {
      setError(problem as Error);
    } finally {
      setSending(null);
      if (input.current) input.current.value = "";
    }
  }

  return (
    <section class="panel upload" aria-label={t("wheels.upload")}>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: dropping a file is for the mouse; the input does the same */}
      <div
        class={`drop ${isOver ? "is-over" : ""}`}
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
        <Glyph name="upload" size={22} />
        <p>
          <strong>{t("wheels.drop")}</strong>{" "}
          <label class="choose">
            <input
              ref={input}
              type="file"
              accept=".whl"
              class="sr-only"
              onChange={(event) => void take(event.currentTarget.files?.[0])}
            />
            <span>{t("wheels.choose")}</span>
          </label>
        </p>
        {sending && (
          <p role="status">
            {t("wheels.uploading", { name: visible(sending.name), percent: Math.round(sending.fraction * 100) })}
            <progress value={sending.fraction} max={1} aria-label={t("wheels.upload")} />
          </p>
        )}
      </div>
      <label class="upload-tags">
        <span>{t("wheels.tags")}</span>
        <input value={tags} placeholder="cpu, linux" onInput={(event) => setTags(event.currentTarget.value)} />
      </label>
      {error && <Problem error={error} />}
    </section>
  );
}

function WheelTable({ wheels, onDelete }: { wheels: readonly Wheel[]; onDelete: (wheel: Wheel) => void }) {
  const sorted = [...wheels].sort(
    (a, b) => readName(a.name).package.localeCompare(readName(b.name).package) || b.modified - a.modified,
  );
  const seen = new Set<string>();
  return (
    <div class="table-frame">
      <table class="wheels stack">
        <thead>
          <tr>
            <th scope="col">{t("wheels.column.package")}</th>
            <th scope="col">{t("wheels.column.version")}</th>
            <th scope="col">{t("wheels.column.tags")}</th>
            <th scope="col" class="num">
              {t("wheels.column.size")}
            </th>
            <th scope="col">{t("wheels.column.uploaded")}</th>
            <th scope="col">{t("wheels.column.sha")}</th>
            <th scope="col">
              <span class="sr-only">{t("wheels.delete.do")}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((wheel) => {
            const name = readName(wheel.name);
            const isNewest = !seen.has(name.package);
            seen.add(name.package);
            return <WheelRow key={wheel.name} wheel={wheel} isNewest={isNewest} onDelete={() => onDelete(wheel)} />;
          })}
        </tbody>
      </table>
    </div>
  );
}

function WheelRow({ wheel, isNewest, onDelete }: { wheel: Wheel; isNewest: boolean; onDelete: () => void }) {
  const name = readName(wheel.name);
  async function download(): Promise<void> {
    try {
      const response = await request("get", "/wheels/{wheel_name}", { path: { wheel_name: wheel.name } });
      save(wheel.name, await response.blob());
    } catch (problem) {
      toast((problem as Error).message, "bad");
    }
  }
  return (
    <tr class="row">
      <td class="cell-main" title={wheel.name}>
        <span class="strong">{visible(name.package)}</span>
      </td>
      <td data-label={t("wheels.column.version")}>
        <span class="mono">{visible(name.version)}</span>{" "}
        {isNewest && <span class="tag is-good">{t("wheels.newest")}</span>}
      </td>
      <td data-label={t("wheels.column.tags")}>
        {wheel.tags.length ? <Tags tags={wheel.tags} /> : <span class="dim">{t("wheels.everyWorker")}</span>}
      </td>
      <td class="num" data-label={t("wheels.column.size")}>
        {bytes(wheel.size_bytes)}
      </td>
      <td data-label={t("wheels.column.uploaded")}>
        <Age at={wheel.modified} />
      </td>
      <td data-label={t("wheels.column.sha")} class="dim">
        <span class="mono" title={wheel.sha256_hex ?? ""}>
          {wheel.sha256_hex?.slice(0, 12) ?? "–"}
        </span>
      </td>
      <td class="cell-actions">
        <button
          type="button"
          class="icon-button"
          aria-label={t("wheels.download", { name: wheel.name })}
          onClick={() => void download()}
        >
          <Glyph name="download" />
        </button>
        <button
          type="button"
          class="icon-button danger"
          aria-label={t("wheels.delete", { name: wheel.name })}
          onClick={onDelete}
        >
          <Glyph name="trash" />
        </button>
      </td>
    </tr>
  );
}

function DeleteDialog({ wheel, onClose, onDone }: { wheel: Wheel; onClose: () => void; onDone: () => Promise<void> }) {
  async function remove(): Promise<void> {
    await del("/wheels/{wheel_name}", { path: { wheel_name: wheel.name } });
    toast(t("wheels.deleted", { name: wheel.name }));
    await onDone();
  }

  return (
    <ConfirmDialog
      title={t("wheels.delete.title")}
      lead={t("wheels.delete.lead", { name: visible(wheel.name) })}
      verb={t("wheels.delete.do")}
      onConfirm={remove}
      onClose={onClose}
    />
  );
}

function History({ events }: { events: readonly WheelEvent[] | null }) {
  if (events === null) return null;
  return (
    <section class="history" aria-labelledby="history-title">
      <h2 id="history-title">{t("wheels.history")}</h2>
      {events.length === 0 ? (
        <p class="dim">{t("wheels.history.none")}</p>
      ) : (
        <div class="table-frame">
          <table class="stack">
            <thead>
              <tr>
                <th scope="col">{t("wheels.history.when")}</th>
                <th scope="col">{t("wheels.history.action")}</th>
                <th scope="col">{t("wheels.history.wheel")}</th>
                <th scope="col">{t("wheels.column.tags")}</th>
                <th scope="col">{t("wheels.history.who")}</th>
                <th scope="col">{t("wheels.history.from")}</th>
              </tr>
            </thead>
            <tbody>
              {events.map((event) => (
                <HistoryRow key={event.event_id} event={event} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function HistoryRow({ event }: { event: WheelEvent }) {
  const who = [event.actor.tenant_id, event.actor.api_key_id].filter(Boolean).join(" · ");
  return (
    <tr class="row">
      <td>
        <Age at={event.occurred_at} />
      </td>
      <td>{t(`wheels.action.${event.action}`)}</td>
      <td class="cell-main mono">{visible(event.wheel_name)}</td>
      <td data-label={t("wheels.column.tags")}>
        <Tags tags={event.tags} />
      </td>
      <td data-label={t("wheels.history.who")}>
        {who ? visible(who) : <span class="dim">{t("wheels.anybody")}</span>}
      </td>
      <td data-label={t("wheels.history.from")} title={visible(event.source.user_agent ?? "")}>
        {visible(event.source.remote_addr ?? "–")}
      </td>
    </tr>
  );
}
