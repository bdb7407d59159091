/** Why an answer was refused: usually somebody else was faster. */
import { type ExecutionEvent, get } from "../../api/client";

export interface GivenAnswer {
  who: string;
  data: unknown;
}

const NEWEST = 200;

/** The answer in an execution's log that let a node go on, if there is one. */
export function answerIn(events: readonly ExecutionEvent[], nodeId: string): GivenAnswer | null {
  const event = events.findLast((one) => one.type === "NODE_RESUMED" && one.payload.node_id === nodeId);
  if (!event) return null;
  const { actor } = event;
  return { who: actor.id ?? actor.kind, data: event.payload.data };
}

/** Looked up in the newest events: an answer that was given long ago was not on the page any more. */
export async function givenAnswer(executionId: string, nodeId: string): Promise<GivenAnswer | null> {
  const path = { execution_id: executionId };
  const { version } = await get("/executions/{execution_id}", { path });
  const query = { after: Math.max(0, version - NEWEST), limit: NEWEST };
  return answerIn((await get("/executions/{execution_id}/events", { path, query })).items, nodeId);
}
