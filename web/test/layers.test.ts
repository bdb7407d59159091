import { describe, expect, it } from "vitest";
import { type GraphEdge, type GraphFrame, type Placed, place } from "../src/drawing/layout";

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

const node = (id: string) => ({ id, label: id });

/** Points of a path of `M x y C …`, close to each other. */
function along(path: string): { x: number; y: number }[] {
  const [first, ...curves] = path
    .slice(1)
    .split("C")
    .map((part) => part.split(" ").map(Number));
  let [x, y] = first as [number, number];
  return curves.flatMap((curve) => {
    const [ax, ay, bx, by, cx, cy] = curve as [number, number, number, number, number, number];
    const start = { x, y };
    [x, y] = [cx, cy];
    return Array.from({ length: 24 }, (_, n) => {
      const t = (n + 1) / 24;
      const u = 1 - t;
      const mix = (p: number, q: number, r: number, s: number) =>
        u * u * u * p + 3 * u * u * t * q + 3 * u * t * t * r + t * t * t * s;
      return { x: mix(start.x, ax, bx, cx), y: mix(start.y, ay, by, cy) };
    });
  });
}

const isIn = (point: { x: number; y: number }, box: Box, edge = 1) =>
  point.x > box.x + edge &&
  point.x < box.x + box.width - edge &&
  point.y > box.y + edge &&
  point.y < box.y + box.height - edge;

const isApart = (a: Box, b: Box) =>
  a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y;

/** Lines that pass over a box they neither leave nor reach. */
function passedOver(placed: Placed): string[] {
  return placed.edges.flatMap((edge) =>
    placed.nodes
      .filter((one) => !one.isJunction && one.id !== edge.from && one.id !== edge.to)
      .filter((one) => along(edge.path).some((point) => isIn(point, one)))
      .map((one) => `${edge.from}→${edge.to} over ${one.id}`),
  );
}

function touching(placed: Placed): string[] {
  const boxes = placed.nodes;
  return boxes.flatMap((a, n) =>
    boxes
      .slice(n + 1)
      .filter((b) => !isApart(a, b))
      .map((b) => `${a.id} ${b.id}`),
  );
}

function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
}

/** Any graph without circles. */
function made(seed: number): { ids: string[]; edges: GraphEdge[] } {
  const next = random(seed);
  const ids = Array.from({ length: 3 + Math.floor(next() * 20) }, (_, n) => `n${n}`);
  const edges = ids.flatMap((to, n) =>
    ids
      .slice(0, n)
      .filter(() => next() < 2 / n)
      .map(
        (from, at): GraphEdge => ({ from, to, key: `${n} ${at}`, ...(next() < 0.2 ? { label: "ok == true" } : {}) }),
      ),
  );
  return { ids, edges };
}

describe("layers", () => {
  it.each(Array.from({ length: 60 }, (_, seed) => seed))(
    "of graph %i: left to right, and nothing is covered",
    (seed) => {
      const { ids, edges } = made(seed);
      const placed = place(ids.map(node), edges);
      const at = new Map(placed.nodes.map((one) => [one.id, one]));
      for (const { from, to } of edges) expect(at.get(from)!.x + at.get(from)!.width).toBeLessThan(at.get(to)!.x);
      expect(touching(placed)).toEqual([]);
      expect(passedOver(placed)).toEqual([]);
      for (const one of placed.nodes) {
        expect(one.x).toBeGreaterThanOrEqual(0);
        expect(one.x + one.width).toBeLessThanOrEqual(placed.width);
        expect(one.y + one.height).toBeLessThanOrEqual(placed.height);
      }
      for (const { labelAt } of placed.edges) {
        if (labelAt) expect(placed.nodes.filter((one) => !isApart(one, labelAt))).toEqual([]);
      }
    },
  );

  it("untangles lines that need not cross", () => {
    const rows = ["a", "b", "c", "d"];
    const edges = rows.map((one, n) => ({ from: `${one}1`, to: `${rows[3 - n]}2` }));
    const placed = place([...rows.map((one) => node(`${one}1`)), ...rows.map((one) => node(`${one}2`))], edges);
    const y = new Map(placed.nodes.map((one) => [one.id, one.y]));
    for (const { from, to } of edges) expect(y.get(to)).toBeCloseTo(y.get(from)!, 5);
  });

  it("of a chain are one straight line", () => {
    const placed = place(["a", "b", "c"].map(node), [
      { from: "a", to: "b" },
      { from: "b", to: "c" },
    ]);
    expect(new Set(placed.nodes.map((one) => one.y)).size).toBe(1);
  });

  it("take a circle as it comes", () => {
    const placed = place(["a", "b", "c"].map(node), [
      { from: "a", to: "b" },
      { from: "b", to: "c" },
      { from: "c", to: "a" },
      { from: "b", to: "b" },
    ]);
    expect(touching(placed)).toEqual([]);
    expect(placed.edges.every((edge) => /^M[\d. C-]+$/.test(edge.path))).toBe(true);
  });

  it("of 1,000 nodes are there at once", () => {
    const ids = Array.from({ length: 1000 }, (_, n) => `n${n}`);
    const edges = ids.slice(1).map((to, n) => ({ from: `n${Math.floor(n / 3)}`, to, key: to }));
    const begun = performance.now();
    place(ids.map(node), edges);
    expect(performance.now() - begun).toBeLessThan(5000);
  });
});

describe("frames", () => {
  const nodes = ["start", "fork", "left", "right", "deep", "join", "end", "repair", "other"].map(node);
  const edges = [
    ["start", "fork"],
    ["fork", "left"],
    ["fork", "right"],
    ["right", "deep"],
    ["left", "join"],
    ["deep", "join"],
    ["join", "end"],
    ["right", "repair"],
    ["start", "other"],
    ["other", "end"],
    ["other", "deep"],
  ].map(([from, to], n) => ({ from: from!, to: to!, key: String(n) }));
  const outer: GraphFrame = { id: "frame", nodes: ["fork", "left", "right", "deep", "join"] };
  const inner: GraphFrame = { id: "inner", nodes: ["right", "deep"] };
  const crossing: GraphFrame = { id: "crossing", nodes: ["deep", "end"] };

  it("hold their nodes and no others, and a line that leaves one leads around the rest", () => {
    const placed = place(nodes, edges, undefined, [inner, outer, crossing]);
    const boxes = new Map(placed.frames.map((frame) => [frame.id, frame]));
    expect([...boxes.keys()].sort()).toEqual(["frame", "inner"]);
    for (const frame of [outer, inner]) {
      const box = boxes.get(frame.id)!;
      const held = placed.nodes.filter((one) => !isApart(one, box)).map((one) => one.id);
      expect(held.sort()).toEqual([...frame.nodes].sort());
    }
    expect(touching(placed)).toEqual([]);
    expect(passedOver(placed)).toEqual([]);
    expect(placed.edges).toHaveLength(edges.length);
  });
});
