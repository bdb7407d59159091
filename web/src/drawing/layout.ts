/** Where the boxes and lines of a graph stand: layers from left to right. */
import { arranged, nested } from "./frames";
import type { Point } from "./layers";

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
  /** Identifies it among edges between the same nodes; it never shares a line with another. */
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
  const sizes = nodes.map((node) => ({
    id: node.id,
    width: nodeWidth(node.label, measure) + (node.extra ?? 0),
    height: NODE_HEIGHT,
  }));
  const there = new Set(nodes.map((node) => node.id));
  const { edges: known, junctions } = withJunctions(edges.filter((edge) => there.has(edge.from) && there.has(edge.to)));
  const items = [...sizes, ...junctions.map((id) => ({ id, width: JUNCTION, height: JUNCTION }))];
  const links = known.map((edge) => ({ from: edge.from, to: edge.to, label: labelSize(edge, measure) }));
  const laid = arranged(items, links, nested(frames));
  return {
    nodes: items.map((item, n) => ({ id: item.id, isJunction: n >= sizes.length, ...moved(laid.boxes.get(item.id)!) })),
    edges: known.map((edge, n) => {
      const { points, labelAt } = laid.routes[n]!;
      const path = curve(points.map(({ x, y }) => ({ x: x + MARGIN, y: y + MARGIN })));
      return labelAt ? { ...edge, path, labelAt: moved(labelAt) } : { ...edge, path };
    }),
    frames: laid.frames.map((frame) => moved(frame)),
    width: items.length ? Math.ceil(laid.width + 2 * MARGIN) : 0,
    height: items.length ? Math.ceil(laid.height + 2 * MARGIN) : 0,
  };
}

function moved<B extends Box>(box: B): B {
  return { ...box, x: box.x + MARGIN, y: box.y + MARGIN };
}

function labelSize(edge: GraphEdge, measure: Measure): { width: number; height: number } | undefined {
  if (!edge.label) return undefined;
  const width = Math.min(MAX_EDGE_LABEL, Math.ceil(measure(edge.label))) + AROUND_EDGE_LABEL;
  return { width, height: EDGE_LABEL_HEIGHT };
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
