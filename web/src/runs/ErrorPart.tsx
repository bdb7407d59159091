import type { Run } from "../api/client";
import { visible } from "../format";
import { t } from "../i18n";
import { CopyButton } from "../ui/texts";
import type { Problem } from "./detail";
import { FailureKind } from "./TriesPanel";
import { type Frame, folded, raised } from "./traceback";

/** What went wrong, then where: the frame that failed first. */
export function ErrorPart({ problem, run }: { problem: Problem; run: Run }) {
  const found = problem.traceback ? raised(problem.traceback) : [];
  const kind = run.failure?.kind;
  return (
    <section class="error-part" aria-label={t("run.error")}>
      <div class="error-head">
        {kind && kind !== "error" && <FailureKind kind={kind} />}
        <pre class="error-text" tabIndex={0} aria-label={t("run.error")}>
          {visible(found[0]?.error || problem.text)}
        </pre>
        <CopyButton text={() => problem.traceback ?? problem.text} label={t("copy.text")} />
      </div>
      {problem.traceback && (
        <div class="frames" role="group" aria-label={t("run.traceback")}>
          {found.map((one, at) => (
            <section key={at}>
              {at > 0 && (
                <h3>
                  {t("run.causedBy")} <span class="mono">{visible(one.error)}</span>
                </h3>
              )}
              <ol>
                {folded(one.frames).map((frame, n) => (
                  <li key={n}>{Array.isArray(frame) ? <Library frames={frame} /> : <FrameView frame={frame} />}</li>
                ))}
              </ol>
            </section>
          ))}
          {found.length === 0 && (
            <pre class="traceback" tabIndex={0} aria-label={t("run.traceback")}>
              {visible(problem.traceback)}
            </pre>
          )}
        </div>
      )}
    </section>
  );
}

function FrameView({ frame }: { frame: Frame }) {
  const path = frame.file.split(/[\\/]/);
  return (
    <div class="frame-one">
      <p title={visible(frame.file)}>
        <strong>{visible(frame.name)}</strong>{" "}
        <span class="dim">
          {visible(path.slice(-2).join("/"))}:{frame.line}
        </span>
      </p>
      {frame.code && <pre>{visible(frame.code)}</pre>}
    </div>
  );
}

function Library({ frames }: { frames: readonly Frame[] }) {
  return (
    <details>
      <summary>{t("run.libraryFrames", { n: frames.length })}</summary>
      {frames.map((frame, at) => (
        <FrameView key={at} frame={frame} />
      ))}
    </details>
  );
}
