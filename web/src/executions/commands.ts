/** An execution as commands to type. */
import type { Execution } from "../api/client";
import { asClient } from "../app/commands";
import { shellQuoted } from "../format";

type Started = Pick<Execution, "graph_id" | "graph_version" | "input">;

export function asCurl(execution: Started, origin: string, keyHeader: string | null): string {
  const body = {
    graph_id: execution.graph_id,
    graph_version: execution.graph_version,
    ...(execution.input == null ? {} : { input: execution.input }),
  };
  return [
    `curl ${shellQuoted(`${origin}/executions`)}`,
    ...(keyHeader ? [`-H "${keyHeader}: $PYOCO_API_KEY"`] : []),
    "-H 'Content-Type: application/json'",
    `-d ${shellQuoted(JSON.stringify(body))}`,
  ].join(" ");
}

export function asCommand(execution: Started, origin: string, hasKeys: boolean): string {
  const command = [
    `executions create ${shellQuoted(execution.graph_id)}`,
    `--graph-version ${execution.graph_version}`,
    ...(execution.input == null ? [] : [`--input ${shellQuoted(JSON.stringify(execution.input))}`]),
  ];
  return asClient(command.join(" "), origin, hasKeys);
}

/** Any JSON; an empty text is nothing. Throws with the reason. */
export function readJson(text: string): unknown {
  return text.trim() === "" ? undefined : (JSON.parse(text) as unknown);
}
