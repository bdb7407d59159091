/** Graphs as they were registered, and the picture of one. */
import type { Execution, Graph, NodeState, NodeStatus } from "../../api/client";
import type { StateEdge, StateNode } from "../../drawing/GraphView";
import type { GraphFrame } from "../../drawing/layout";
import type { IconName } from "../../ui/icons";
import type { ExecutionLook } from "../../ui/Status";

export type NodeKind = "task" | "wait" | "sleep" | "repeat" | "execution" | "map" | "fork" | "join";

export interface NodeDefinition {
  type: NodeKind;
  flow?: string;
  tag?: string;
  external?: boolean;
  params?: Record<string, unknown>;
  /** The graph that an execution executes, or a map for each item. */
  graph?: string;
  /** The task that a repeat repeats, or a map runs for each item. */
  node?: Pick<NodeDefinition, "flow" | "params">;
  prompt?: string;
  policy?: string;
  min_success?: number;
  /** The node that undoes it. */
  undo?: string;
  for_sec?: number | string;
  until?: number | string;
}

export interface EdgeDefinition {
  from: string;
  to: string;
  on?: "success" | "failure";
  then?: "continue" | "fail";
  when?: string;
}

export interface Definition {
  id: string;
  nodes: Record<string, NodeDefinition>;
  edges: EdgeDefinition[];
}

export function definitionOf(graph: Pick<Graph, "definition">): Definition {
  const definition = graph.definition as unknown as Definition;
  return { ...definition, edges: definition.edges ?? [] };
}

export const KIND_ICONS: Record<NodeKind | "external", IconName | null> = {
  task: null,
  external: "outside",
  wait: "person",
  sleep: "waiting",
  repeat: "again",
  execution: "flow",
  map: "dots",
  fork: "fork",
  join: "join",
};

export type KindName = keyof typeof KIND_ICONS;

export function kindOf(node: NodeDefinition | undefined): KindName {
  return node?.external ? "external" : (node?.type ?? "task");
}

/** An idle worker is another thing than a node that nothing has come to. */
export function lookOf(status: NodeStatus): ExecutionLook {
  return status === "IDLE" ? "UNREACHED" : status;
}

/** A node that sleeps goes on by itself. */
export function isAsking(node: Pick<NodeState, "status" | "wake_at">): boolean {
  return node.status === "WAITING" && node.wake_at === null;
}

const FATES: Record<string, NonNullable<StateEdge["fate"]>> = {
  taken: "taken",
  "not taken": "untaken",
  failed: "failed",
  canceled: "untaken",
  broken: "failed",
};

const KIND_WIDTH = 20;

export interface Picture {
  nodes: StateNode[];
  edges: StateEdge[];
  frames: GraphFrame[];
}

/** Nodes, edges and frames to be drawn: of an execution, or of the plan alone. */
export function picture(
  definition: Definition,
  state: Pick<Execution, "nodes" | "edges"> | null,
  kindName: (kind: KindName) => string,
  failureLabel: string,
  undoLabel = "",
): Picture {
  const nodes = Object.entries(definition.nodes).map(([id, node]): StateNode => {
    const kind = kindOf(node);
    const icon = KIND_ICONS[kind];
    const known = state?.nodes[id];
    return {
      id,
      label: id,
      state: state === null ? null : known ? lookOf(known.status) : "UNREACHED",
      ...(icon ? { kind: { icon, name: kindName(kind) }, extra: KIND_WIDTH } : {}),
    };
  });
  const edges = definition.edges.map((edge, at): StateEdge => {
    const isFailure = edge.on === "failure";
    const label = [isFailure ? failureLabel : "", edge.when ?? ""].filter(Boolean).join(": ");
    return {
      from: edge.from,
      to: edge.to,
      key: String(at),
      fate: FATES[state?.edges?.[at]?.fate ?? "open"] ?? "open",
      isFailure,
      ...(label ? { label: shortCondition(label), title: label } : {}),
    };
  });
  const undos = Object.entries(definition.nodes).flatMap(([id, node]): StateEdge[] => {
    if (node.undo === undefined) return [];
    const fate = state?.nodes[node.undo]?.undoes == null ? "open" : "taken";
    return [{ from: id, to: node.undo, key: `undo ${id}`, fate, isFailure: true, label: undoLabel }];
  });
  return { nodes, edges: [...edges, ...undos], frames: framesOf(definition) };
}

/** `nodes.approve.output.ok == true` is long, and its place in the graph shows the rest. */
export function shortCondition(text: string): string {
  return text.replaceAll(/\bnodes\.([\w-]+)\.output\b/g, "$1");
}

/** Each join with the nearest fork above all of its branches, and everything in between. */
export function framesOf(definition: Definition): GraphFrame[] {
  const below = reaching(definition.edges, (edge) => [edge.from, edge.to]);
  const above = reaching(definition.edges, (edge) => [edge.to, edge.from]);
  const forks = Object.keys(definition.nodes).filter((id) => definition.nodes[id]?.type === "fork");
  return Object.keys(definition.nodes)
    .filter((id) => definition.nodes[id]?.type === "join")
    .flatMap((join) => {
      const sources = definition.edges.filter((edge) => edge.to === join).map((edge) => edge.from);
      const [fork] = forks
        .filter((one) => sources.every((source) => source === one || below(one).has(source)))
        .sort((a, b) => below(a).size - below(b).size);
      if (fork === undefined) return [];
      const between = [...below(fork)].filter((id) => above(join).has(id));
      return [{ id: `frame ${join}`, nodes: [fork, ...between, join] }];
    });
}

/** All nodes that can be reached from one, without itself. */
function reaching(
  edges: readonly EdgeDefinition[],
  ends: (edge: EdgeDefinition) => [string, string],
): (id: string) => Set<string> {
  const next = new Map<string, string[]>();
  for (const edge of edges) {
    const [from, to] = ends(edge);
    next.set(from, [...(next.get(from) ?? []), to]);
  }
  const known = new Map<string, Set<string>>();
  return (start) => {
    const found = known.get(start) ?? new Set<string>();
    if (known.has(start)) return found;
    const waiting = [start];
    for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
      for (const to of next.get(id) ?? []) {
        if (found.has(to)) continue;
        found.add(to);
        waiting.push(to);
      }
    }
    known.set(start, found);
    return found;
  };
}

/** The id that a pasted definition gives itself. */
export function idIn(text: string): string {
  return /^\s*"?id"?\s*:\s*["']?([A-Za-z0-9_-]{1,64})["']?\s*,?\s*$/m.exec(text)?.[1] ?? "";
}

/** How the next problem begins; a problem may have a semicolon of its own. */
const PROBLEM = /; (?=node |nodes |edges? |edges\[|id |top level|there (?:is|are) |and \d+ more)/;

/** `graph x: one; two` as a list: the server reports all problems at once. */
export function problemsIn(detail: string): string[] {
  return detail
    .replace(/^graph [A-Za-z0-9_-]*:? ?/, "")
    .split(PROBLEM)
    .filter(Boolean);
}
