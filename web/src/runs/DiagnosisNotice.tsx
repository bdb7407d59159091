import { useEffect, useState } from "preact/hooks";
import { get, type Run, type Schemas } from "../api/client";
import { worker } from "../app/commands";
import { visible } from "../format";
import { language } from "../i18n";
import { Command } from "../ui/texts";
import { changesOf, hasSummary, isShown, toneOf } from "./diagnosis";

/** Why it waits, or why it ended as it did: read when the run is opened, and when its state changes. */
export function DiagnosisNotice({ run }: { run: Run }) {
  const [found, setFound] = useState<Schemas["Diagnosis"] | null>(null);
  const changes = `${changesOf(run)} ${language.value}`;
  useEffect(() => {
    const reading = new AbortController();
    get("/runs/{run_id}/diagnosis", { path: { run_id: run.run_id }, signal: reading.signal }).then(setFound, () => {
      // The facts of the run are on the page without it, and what is wrong with the server is there, too.
      if (!reading.signal.aborted) setFound(null);
    });
    return () => reading.abort();
  }, [changes]);
  if (!found || !isShown(found.cause)) return null;
  return (
    <section class={`notice waits ${toneOf(found.cause)}`}>
      {hasSummary(found.cause) && (
        <p>
          <strong>{visible(found.summary)}</strong>
        </p>
      )}
      <ul>
        {found.advice.map((advice) => (
          <li key={advice}>{visible(advice)}</li>
        ))}
      </ul>
      {found.cause === "no_worker" && <Command text={worker(run.tag ?? "default")} />}
    </section>
  );
}
