import { describe, expect, it } from "vitest";
import { curve, fitting, nodeWidth, place, withJunctions } from "../src/drawing/layout";

const node = (id: string) => ({ id, label: id });

function overlap(nodes: { x: number; y: number; width: number; height: number }[]): boolean {
  return nodes.some((a, n) =>
    nodes
      .slice(n + 1)
      .some((b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height),
  );
}

describe("a graph", () => {
  it("goes from left to right, and nothing lies on anything else", () => {
    const placed = place(["a", "b", "c", "d"].map(node), [
      { from: "a", to: "b" },
      { from: "a", to: "c" },
      { from: "b", to: "d" },
      { from: "c", to: "d" },
    ]);
    const x = Object.fromEntries(placed.nodes.map((one) => [one.id, one.x]));
    expect(x.a).toBeLessThan(x.b!);
    expect(x.b).toBe(x.c);
    expect(x.b).toBeLessThan(x.d!);
    expect(overlap(placed.nodes)).toBe(false);
    expect(placed.edges).toHaveLength(4);
  });

  it("has siblings in their order, from the top", () => {
    const middle = ["b1", "b2", "b3", "b4"];
    const placed = place(
      ["a", ...middle, "z"].map(node),
      middle.flatMap((b) => [
        { from: "a", to: b },
        { from: b, to: "z" },
      ]),
    );
    const y = middle.map((b) => placed.nodes.find((one) => one.id === b)!.y);
    expect(y).toEqual([...y].sort((one, other) => one - other));
  });

  it("of 200 tasks in layers keeps every name readable", () => {
    const layers = Array.from({ length: 10 }, (_, l) => Array.from({ length: 20 }, (_, n) => `task_${l}_${n}`));
    const edges = layers
      .slice(1)
      .flatMap((layer, l) => layer.flatMap((to) => layers[l]!.map((from) => ({ from, to }))));
    const placed = place(layers.flat().map(node), edges);
    const tasks = placed.nodes.filter((one) => !one.isJunction);
    expect(tasks).toHaveLength(200);
    expect(overlap(tasks)).toBe(false);
    expect(placed.edges).toHaveLength(9 * 40);
    expect(placed.height).toBeLessThan(20 * 60);
    expect(placed.width).toBeLessThan(10 * 260);
  });

  it("leaves out lines to what is not there", () => {
    expect(place([node("a")], [{ from: "gone", to: "a" }]).edges).toEqual([]);
  });

  it("of nothing is nothing", () => {
    expect(place([], [])).toMatchObject({ nodes: [], edges: [] });
  });
});

describe("junctions", () => {
  it("stand where every node of a group leads to every node of another", () => {
    const edges = ["a", "b", "c"].flatMap((from) => ["x", "y", "z"].map((to) => ({ from, to })));
    const found = withJunctions(edges);
    expect(found.junctions).toHaveLength(1);
    expect(found.edges).toHaveLength(6);
  });

  it("are not needed for one line into many, or many into one", () => {
    const edges = ["x", "y", "z"].flatMap((one) => [
      { from: "a", to: one },
      { from: one, to: "b" },
    ]);
    expect(withJunctions(edges).junctions).toEqual([]);
    expect(withJunctions(edges).edges).toHaveLength(6);
  });
});

describe("pieces", () => {
  it("labels that are too long do not make boxes without end; wide characters count", () => {
    expect(nodeWidth("x".repeat(500))).toBe(nodeWidth("x".repeat(400)));
    expect(nodeWidth("請求書の照合処理")).toBeGreaterThan(nodeWidth("abcdefgh"));
  });

  it("a line passes its points", () => {
    expect(curve([])).toBe("");
    expect(
      curve([
        { x: 0, y: 0 },
        { x: 10, y: 4 },
      ]),
    ).toBe("M0 0C5 0 5 4 10 4");
  });

  it("the scale shows the whole if that can be read", () => {
    expect(fitting(500, 100, 1000, 400)).toBe(1);
    expect(fitting(1250, 100, 1000, 400)).toBe(0.8);
    expect(fitting(40_000, 100, 1000, 400)).toBe(0.72);
    expect(fitting(0, 0, 0, 0)).toBe(1);
  });
});
