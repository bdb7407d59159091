import { useEffect, useRef, useState } from "preact/hooks";
import { type Run, request, url } from "../api/client";
import { place, refine } from "../app/router";
import { needsKey } from "../auth/session";
import { bytes, visible } from "../format";
import { t } from "../i18n";
import { Glyph } from "../ui/icons";
import { JsonValue } from "../ui/JsonValue";
import { save } from "../ui/save";
import { Age, Plain, Problem } from "../ui/texts";
import { type Artifact, cells, decoded, isTooLarge, isWhole, kindOf, SHOWN_BYTES } from "./artifacts";
import { Markdown } from "./Markdown";

const READ = "/runs/{run_id}/artifacts/{name}";

/** Files that a run has saved, or one of its tasks; one of them is shown below. */
export function ArtifactsPart({ run, artifacts }: { run: Run; artifacts: readonly Artifact[] }) {
  const { query } = place.value;
  const wanted = query.artifact ?? (artifacts.length === 1 ? artifacts[0]!.name : undefined);
  const chosen = artifacts.find((one) => one.name === wanted);
  const [error, setError] = useState<Error | null>(null);
  return (
    <>
      <ul class="artifacts" aria-label={t("task.artifacts")}>
        {artifacts.map((one) => (
          <li key={one.name}>
            <button
              type="button"
              aria-pressed={one === chosen}
              onClick={() => refine({ ...query, artifact: one.name })}
            >
              <Plain text={one.name} />
              <span class="dim">
                {bytes(one.size)} · {visible(one.type)}
                {one.task !== null && <> · {visible(one.task)}</>} · <Age at={one.created_at} />
              </span>
            </button>
            <Download run={run} artifact={one} onError={setError} />
          </li>
        ))}
      </ul>
      {error && <Problem error={error} />}
      {chosen && <Preview key={chosen.sha256 + chosen.type} run={run} artifact={chosen} />}
    </>
  );
}

/** Without keys the browser loads it by itself, whatever its size. */
function Download({
  run: { run_id },
  artifact: { name },
  onError,
}: {
  run: Run;
  artifact: Artifact;
  onError: (error: Error | null) => void;
}) {
  const options = { path: { run_id, name } };
  const label = t("wheels.download", { name: visible(name) });

  async function load(): Promise<void> {
    onError(null);
    try {
      save(name, await (await request("get", READ, options)).blob());
    } catch (problem) {
      onError(problem as Error);
    }
  }

  return (
    <a
      class="icon-button"
      href={url(READ, options)}
      download={name}
      aria-label={label}
      title={label}
      onClick={(event) => {
        if (!needsKey) return;
        event.preventDefault();
        void load();
      }}
    >
      <Glyph name="download" />
    </a>
  );
}

function Preview({ run, artifact }: { run: Run; artifact: Artifact }) {
  const [content, setContent] = useState<ArrayBuffer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const kind = kindOf(artifact);
  const { name, size } = artifact;
  const isShown = kind !== "none" && !isTooLarge(artifact);

  useEffect(() => {
    if (!isShown || size === 0) return;
    const leaving = new AbortController();
    const end = isWhole(kind) ? size : Math.min(size, SHOWN_BYTES);
    const headers = { Range: `bytes=0-${end - 1}` };
    request("get", READ, { path: { run_id: run.run_id, name }, headers, signal: leaving.signal })
      .then((answer) => answer.arrayBuffer())
      .then(setContent)
      .catch((problem) => leaving.signal.aborted || setError(problem as Error));
    return () => leaving.abort();
  }, []);

  if (error) return <Problem error={error} />;
  if (size === 0 || !isShown) {
    const why = size === 0 ? "artifacts.empty" : kind === "none" ? "artifacts.unknown" : "artifacts.large";
    return <p class="dim pad">{t(why)}</p>;
  }
  if (content === null) return <p class="dim pad loading">{t("runs.loading")}</p>;
  const isCut = content.byteLength < size;
  return (
    <section class="preview" aria-label={visible(name)}>
      {isCut && <p class="note">{t("artifacts.cut", { shown: bytes(content.byteLength), size: bytes(size) })}</p>}
      <Shown artifact={artifact} content={content} isCut={isCut} />
    </section>
  );
}

function Shown({ artifact, content, isCut }: { artifact: Artifact; content: ArrayBuffer; isCut: boolean }) {
  const kind = kindOf(artifact);
  const name = visible(artifact.name);
  if (kind === "image") return <Picture name={name} type={artifact.type} content={content} />;
  const text = decoded(content, artifact.type);
  if (kind === "html") return <Page name={name} text={text} />;
  // The last line may end in the middle.
  if (kind === "table") return <Table name={name} text={isCut ? text.slice(0, text.lastIndexOf("\n")) : text} />;
  if (kind === "markdown") return <Markdown text={text} />;
  const value = kind === "json" ? parsed(text) : undefined;
  if (value !== undefined) return <JsonValue value={value} label={name} />;
  return (
    <pre tabIndex={0} aria-label={name}>
      {visible(text)}
    </pre>
  );
}

/** Undefined: it is none, or its end is missing. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** A script in an SVG does not run in an image. */
function Picture({ name, type, content }: { name: string; type: string; content: ArrayBuffer }) {
  const [address, setAddress] = useState("");
  const [isBroken, setBroken] = useState(false);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([content], { type }));
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [content]);
  if (isBroken) return <p class="dim pad">{t("artifacts.unknown")}</p>;
  return address && <img src={address} alt={name} onError={() => setBroken(true)} />;
}

/** In a frame without scripts, requests and an origin, behind a page of the server that has none either. */
function Page({ name, text }: { name: string; text: string }) {
  const frame = useRef<HTMLIFrameElement>(null);
  return (
    <iframe
      ref={frame}
      title={name}
      src="/static/sandbox.html"
      sandbox="allow-scripts"
      onLoad={() => frame.current?.contentWindow?.postMessage(text, "*")}
    />
  );
}

const ROWS = 200;

function Table({ name, text }: { name: string; text: string }) {
  const [head = [], ...rows] = cells(text, ROWS + 2);
  const looks = head.map((_, at) => (/^-?[\d.,]+%?$/.test(rows[0]?.[at] ?? "") ? "num" : undefined));
  return (
    <>
      <div class="table-scroll" tabIndex={0} role="region" aria-label={name}>
        <table>
          <thead>
            <tr>
              {head.map((cell, at) => (
                <th key={at} scope="col" class={looks[at]}>
                  {visible(cell)}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, ROWS).map((row, at) => (
              <tr key={at}>
                {row.map((cell, n) => (
                  <td key={n} class={looks[n]}>
                    {visible(cell)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > ROWS && <p class="note">{t("artifacts.rows", { n: ROWS })}</p>}
    </>
  );
}
