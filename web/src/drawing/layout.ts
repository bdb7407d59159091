/** Where the boxes and lines of a graph stand: layers from left to right. */
import { layout as arrange, Graph } from "@dagrejs/dagre";

export interface GraphNode {
  id: string;
  label: string;
  /** Pixels beside the label that are wanted for something else. */
  extra?: number;
}

export interface GraphEdge {
  from: string;
  to: string;
  label?: string;
  /** Tells it apart from others between the same nodes; it never shares a line with another. */
  key?: string;
}

/** Nodes that belong together. They are kept together, and nothing else comes between them. */
export interface GraphFrame {
  id: string;
  nodes: readonly string[];
}

export interface PlacedNode {
  id: string;
  /** A point where many lines meet, and no node of the graph. */
  isJunction: boolean;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface PlacedEdge extends GraphEdge {
  path: string;
  /** Where its label stands. */
  labelAt?: Box;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface PlacedFrame extends Box {
  id: string;
}

export interface Placed {
  nodes: PlacedNode[];
  edges: PlacedEdge[];
  frames: PlacedFrame[];
  width: number;
  height: number;
}

export const NODE_HEIGHT = 32;
const MARGIN = 12;
const JUNCTION = 6;
const MIN_WIDTH = 84;
const MAX_WIDTH = 220;
const CHARACTER = 7.2;
const WIDE_CHARACTER = 13;
const AROUND_LABEL = 44;
const EDGE_LABEL_HEIGHT = 20;
const MAX_EDGE_LABEL = 170;
const AROUND_EDGE_LABEL = 16;

/** About how wide a label is; it is cut where it is too long. */
export function labelWidth(label: string): number {
  const wide = [...label].filter((character) => character > "\u2e80").length;
  return wide * WIDE_CHARACTER + ([...label].length - wide) * CHARACTER;
}

/** In CSS pixels; a page measures, a test estimates. */
export type Measure = (label: string) => number;

export function nodeWidth(label: string, measure: Measure = labelWidth): number {
  return Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, Math.ceil(measure(label) + AROUND_LABEL)));
}

/**
 * Where every node of one group leads to every node of another, the lines meet in a point: 20 × 20 lines are
 * 40, and can be followed with the eye.
 */
export function withJunctions(edges: readonly GraphEdge[]): { edges: GraphEdge[]; junctions: string[] } {
  const junctions: string[] = [];
  const drawn = groupsOf(edges.filter((edge) => edge.key === undefined)).flatMap((group) => {
    const [from, to] = [new Set(group.map((edge) => edge.from)), new Set(group.map((edge) => edge.to))];
    if (group.length <= from.size + to.size) return group;
    const junction = `junction ${junctions.length}`;
    junctions.push(junction);
    return [
      ...[...from].map((one) => ({ from: one, to: junction })),
      ...[...to].map((one) => ({ from: junction, to: one })),
    ];
  });
  return { edges: [...drawn, ...edges.filter((edge) => edge.key !== undefined)], junctions };
}

/** Lines to nodes that come after exactly the same nodes. */
function groupsOf(edges: readonly GraphEdge[]): GraphEdge[][] {
  const inward = grouped(edges, (edge) => edge.to);
  const sources = (group: GraphEdge[]) => JSON.stringify(group.map((edge) => edge.from).sort());
  return grouped(inward, sources).map((groups) => groups.flat());
}

function grouped<T>(values: readonly T[], key: (value: T) => string): T[][] {
  const groups = new Map<string, T[]>();
  for (const value of values) {
    const group = groups.get(key(value));
    if (group) group.push(value);
    else groups.set(key(value), [value]);
  }
  return [...groups.values()];
}

export function place(
  nodes: readonly GraphNode[],
  edges: readonly GraphEdge[],
  measure: Measure = labelWidth,
  frames: readonly GraphFrame[] = [],
): Placed {
  const graph = new Graph({ multigraph: true, compound: frames.length > 0 });
  graph.setGraph({ rankdir: "LR", nodesep: 14, edgesep: 8, ranksep: 46, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    graph.setNode(node.id, { width: nodeWidth(node.label, measure) + (node.extra ?? 0), height: NODE_HEIGHT });
  }
  const inner = frames.length > 0 ? nest(graph, frames) : [];
  const inside = edges.filter((edge) => graph.hasNode(edge.from) && graph.hasNode(edge.to));
  const { edges: known, junctions } = withJunctions(inside);
  for (const junction of junctions) graph.setNode(junction, { width: JUNCTION, height: JUNCTION });
  for (const edge of [...known].reverse()) graph.setEdge(edge.from, edge.to, labelBox(edge, measure), edge.key); // so that the first ends up on top
  arrange(graph);
  const size = graph.graph() as { width?: number; height?: number };
  const at = (id: string) => graph.node(id) as Centre;
  return {
    nodes: [
      ...nodes.map((node) => corner(node.id, at(node.id), false)),
      ...junctions.map((junction) => corner(junction, at(junction), true)),
    ],
    edges: known.map((edge) => {
      const line = graph.edge(edge.from, edge.to, edge.key) as Line;
      const path = curve([right(at(edge.from)), ...line.points.slice(1, -1), left(at(edge.to))]);
      return edge.label ? { ...edge, path, labelAt: boxOf(line) } : { ...edge, path };
    }),
    frames: inner.map((frame) => ({ id: frame, ...boxOf(at(frame)) })),
    width: Math.ceil(size.width ?? 0),
    height: Math.ceil(size.height ?? 0),
  };
}

/** Frames as parents of their nodes; one inside another is its child. One that crosses another is left out. */
function nest(graph: Graph, frames: readonly GraphFrame[]): string[] {
  const drawn: GraphFrame[] = [];
  for (const frame of [...frames].sort((a, b) => b.nodes.length - a.nodes.length)) {
    const around = drawn.filter((one) => frame.nodes.some((node) => one.nodes.includes(node)));
    if (
      !around.every(
        (one) => one.nodes.length > frame.nodes.length && frame.nodes.every((node) => one.nodes.includes(node)),
      )
    )
      continue;
    graph.setNode(frame.id, {});
    const parent = around.at(-1);
    if (parent) graph.setParent(frame.id, parent.id);
    for (const node of frame.nodes) graph.setParent(node, frame.id);
    drawn.push(frame);
  }
  return drawn.map((frame) => frame.id);
}

function labelBox(edge: GraphEdge, measure: Measure): object {
  if (!edge.label) return {};
  const width = Math.min(MAX_EDGE_LABEL, Math.ceil(measure(edge.label))) + AROUND_EDGE_LABEL;
  return { width, height: EDGE_LABEL_HEIGHT, labelpos: "c" };
}

function boxOf(at: Centre): Box {
  return { x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height };
}

interface Centre {
  x: number;
  y: number;
  width: number;
  height: number;
}

interface Point {
  x: number;
  y: number;
}

interface Line extends Centre {
  points: Point[];
}

function corner(id: string, at: Centre, isJunction: boolean): PlacedNode {
  return { id, isJunction, ...boxOf(at) };
}

function right(at: Centre): Point {
  return { x: at.x + at.width / 2, y: at.y };
}

function left(at: Centre): Point {
  return { x: at.x - at.width / 2, y: at.y };
}

/** A line through the points that leaves and arrives level, and is round in between. */
export function curve(points: readonly Point[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${round(first.x)} ${round(first.y)}`;
  let from = first;
  for (const to of rest) {
    const middle = round((from.x + to.x) / 2);
    path += `C${middle} ${round(from.y)} ${middle} ${round(to.y)} ${round(to.x)} ${round(to.y)}`;
    from = to;
  }
  return path;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

/** Small enough to see the whole, large enough to read it. */
export function fitting(width: number, height: number, roomX: number, roomY: number): number {
  if (width <= 0 || height <= 0 || roomX <= 0) return 1;
  const READABLE = 0.72;
  return Math.min(1, Math.max(READABLE, Math.min(roomX / width, roomY / height)));
}
