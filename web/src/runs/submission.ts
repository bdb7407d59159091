/** A run to be submitted: from a form, from another run, and as commands to type. */
import type { Json, Run } from "../api/client";
import { asClient } from "../app/commands";
import { shellQuoted } from "../format";

export interface Submission {
  flow_name: string;
  params: { [key: string]: Json };
  tag?: string;
  tags?: string[];
}

/** The same flow with the same params. */
export function submissionOf(run: Pick<Run, "flow_name" | "params" | "tag" | "tags">): Submission {
  return {
    flow_name: run.flow_name,
    params: run.params as { [key: string]: Json },
    ...(run.tag ? { tag: run.tag } : {}),
    ...(run.tags?.length ? { tags: run.tags } : {}),
  };
}

export function asCurl(submission: Submission, origin: string, keyHeader: string | null): string {
  const key = keyHeader ? [`-H "${keyHeader}: $PYOCO_API_KEY"`] : [];
  return [
    `curl ${shellQuoted(`${origin}/runs`)}`,
    ...key,
    "-H 'Content-Type: application/json'",
    `-d ${shellQuoted(JSON.stringify(submission))}`,
  ].join(" ");
}

export function asCommand(submission: Submission, origin: string, hasKeys: boolean): string {
  const command = [
    "submit",
    `--flow-name ${shellQuoted(submission.flow_name)}`,
    ...(Object.keys(submission.params).length ? [`--params ${shellQuoted(JSON.stringify(submission.params))}`] : []),
    ...(submission.tag ? [`--tag ${shellQuoted(submission.tag)}`] : []),
    ...(submission.tags?.length ? [`--tags ${shellQuoted(submission.tags.join(","))}`] : []),
  ];
  return asClient(command.join(" "), origin, hasKeys);
}

/** Throws with the reason when the text is no JSON object. An empty text is an empty object. */
export function readParams(text: string, notAnObject: string): { [key: string]: Json } {
  const value: unknown = JSON.parse(text.trim() || "{}");
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(notAnObject);
  return value as { [key: string]: Json };
}

export function readTags(text: string): string[] {
  return text
    .split(",")
    .map((tag) => tag.trim())
    .filter(Boolean);
}
