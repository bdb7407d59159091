/** Layers inside of layers: what a frame holds is placed first, and is one large box to everything around it. */
import { type Item, type Link, layered, type Point, ranksOf } from "./layers";
import type { Box, GraphFrame, PlacedFrame } from "./layout";

/** With the frames that lie inside of it. */
export interface Nested extends GraphFrame {
  inner: Nested[];
}

export interface Route {
  points: Point[];
  labelAt: Box | null;
}

export interface Arranged {
  boxes: Map<string, Box>;
  /** In the order of the links. */
  routes: Route[];
  frames: PlacedFrame[];
  width: number;
  height: number;
}

const INSIDE_FRAME = 14;

/** One inside another belongs to it. One that crosses another is left out. */
export function nested(frames: readonly GraphFrame[]): Nested[] {
  const drawn: Nested[] = [];
  const roots: Nested[] = [];
  for (const frame of [...frames].sort((a, b) => b.nodes.length - a.nodes.length)) {
    const around = drawn.filter((one) => frame.nodes.some((node) => one.nodes.includes(node)));
    const isInside = (one: Nested) =>
      one.nodes.length > frame.nodes.length && frame.nodes.every((node) => one.nodes.includes(node));
    if (!around.every(isInside)) continue;
    const made = { ...frame, inner: [] };
    (around.at(-1)?.inner ?? roots).push(made);
    drawn.push(made);
  }
  return roots;
}

export function arranged(items: readonly Item[], links: readonly Link[], frames: readonly Nested[]): Arranged {
  const { boxes, frames: placed, routes, width, height } = laidOut(items, links, frames);
  return {
    boxes,
    frames: placed,
    width,
    height,
    routes: links.map((link, n) => {
      const { points, labelMiddle } = routes.get(n)!;
      const { width: w, height: h } = link.label ?? { width: 0, height: 0 };
      const labelAt = labelMiddle && { x: labelMiddle.x - w / 2, y: labelMiddle.y - h / 2, width: w, height: h };
      return { points, labelAt };
    }),
  };
}

interface Part {
  points: Point[];
  labelMiddle: Point | null;
}

interface Laid {
  boxes: Map<string, Box>;
  frames: PlacedFrame[];
  /** By the number of the link: whole ones, and of those that leave or enter the part up to the border. */
  routes: Map<number, Part>;
  width: number;
  height: number;
}

function laidOut(items: readonly Item[], links: readonly Link[], frames: readonly Nested[]): Laid {
  const inner = new Map(
    frames.map((frame) => {
      const laid = laidOut(
        items.filter((item) => frame.nodes.includes(item.id)),
        links,
        frame.inner,
      );
      return [frame.id, { frame, laid }] as const;
    }),
  );
  const ownerOf = new Map(items.map((item) => [item.id, item.id]));
  for (const { frame } of inner.values()) for (const node of frame.nodes) ownerOf.set(node, frame.id);
  const boxes: Item[] = [
    ...items.filter((item) => ownerOf.get(item.id) === item.id),
    ...[...inner].map(([id, { laid }]) => ({
      id,
      width: laid.width + 2 * INSIDE_FRAME,
      height: laid.height + 2 * INSIDE_FRAME,
    })),
  ];
  /** How far below the middle of its box a link touches it. */
  const dyOf = (owner: string, n: number, end: "from" | "to"): number => {
    const laid = inner.get(owner)?.laid;
    const point = laid?.routes.get(n)?.points.at(end === "from" ? -1 : 0);
    return laid && point ? point.y - laid.height / 2 : 0;
  };
  const drawn: { n: number; link: Link }[] = [];
  const leaving: { n: number; owner: string; end: "from" | "to" }[] = [];
  for (const [n, { from, to, label }] of links.entries()) {
    const [a, b] = [ownerOf.get(from), ownerOf.get(to)];
    if (a !== undefined && b !== undefined && (a !== b || a === from)) {
      drawn.push({ n, link: { from: a, to: b, fromDy: dyOf(a, n, "from"), toDy: dyOf(b, n, "to"), label } });
    } else if (a !== undefined && b === undefined) leaving.push({ n, owner: a, end: "from" });
    else if (b !== undefined && a === undefined) leaving.push({ n, owner: b, end: "to" });
  }
  const { rank } = ranksOf(
    boxes,
    drawn.map((one) => one.link),
  );
  const last = Math.max(0, ...rank.values());
  // From the inside, lines lead around what stands between them and the border.
  const ports = leaving.filter(({ owner, end }) => rank.get(owner) !== (end === "from" ? last : 0));
  const portItem = ({ n, end }: (typeof ports)[0]): Item => ({
    id: `port ${n}`,
    width: 0,
    height: 1,
    side: end === "from" ? "last" : "first",
  });
  const portLink = ({ n, owner, end }: (typeof ports)[0]): Link =>
    end === "from"
      ? { from: owner, to: `port ${n}`, fromDy: dyOf(owner, n, "from") }
      : { from: `port ${n}`, to: owner, toDy: dyOf(owner, n, "to") };
  const found = layered([...boxes, ...ports.map(portItem)], [...drawn.map((one) => one.link), ...ports.map(portLink)]);

  const placed = new Map<string, Box>();
  const placedFrames: PlacedFrame[] = [];
  const shifts = new Map<string, Point>();
  for (const item of boxes) {
    const at = found.at.get(item.id)!;
    const box = { x: at.x - item.width / 2, y: at.y - item.height / 2, width: item.width, height: item.height };
    const within = inner.get(item.id);
    if (!within) {
      placed.set(item.id, box);
      continue;
    }
    const shift = { x: box.x + INSIDE_FRAME, y: box.y + INSIDE_FRAME };
    shifts.set(item.id, shift);
    placedFrames.push({ id: item.id, ...box });
    for (const frame of within.laid.frames) placedFrames.push({ ...frame, ...shifted(frame, shift) });
    for (const [id, one] of within.laid.boxes) placed.set(id, { ...one, ...shifted(one, shift) });
  }

  /** What leads from the node itself to the border of its frame, or back; of a plain node, its side. */
  const within = (owner: string, n: number, end: "from" | "to"): Point[] => {
    const shift = shifts.get(owner);
    const part = shift && inner.get(owner)!.laid.routes.get(n);
    if (part) return part.points.map((point) => shifted(point, shift));
    const box = placed.get(owner)!;
    return [{ x: end === "from" ? box.x + box.width : box.x, y: box.y + box.height / 2 }];
  };
  const routes = new Map<number, Part>();
  for (const [id, { laid }] of inner) {
    const shift = shifts.get(id)!;
    for (const [n, part] of laid.routes) {
      if (ownerOf.get(links[n]!.from) !== id || ownerOf.get(links[n]!.to) !== id) continue;
      const { labelMiddle, points } = part;
      routes.set(n, {
        points: points.map((point) => shifted(point, shift)),
        labelMiddle: labelMiddle && shifted(labelMiddle, shift),
      });
    }
  }
  for (const [at, { n, link }] of drawn.entries()) {
    const { points, labelAt } = found.routes[at]!;
    routes.set(n, {
      points: [...within(link.from, n, "from"), ...points, ...within(link.to, n, "to")],
      labelMiddle: labelAt,
    });
  }
  for (const { n, owner, end } of leaving) {
    const at = ports.findIndex((port) => port.n === n);
    const between = at < 0 ? [] : found.routes[drawn.length + at]!.points;
    const start = within(owner, n, end);
    const y = at < 0 ? (end === "from" ? start.at(-1)! : start[0]!).y : found.at.get(`port ${n}`)!.y;
    const border = { x: end === "from" ? found.width : 0, y };
    routes.set(n, {
      points: end === "from" ? [...start, ...between, border] : [border, ...between, ...start],
      labelMiddle: null,
    });
  }
  return { boxes: placed, frames: placedFrames, routes, width: found.width, height: found.height };
}

function shifted(point: Point, by: Point): Point {
  return { x: point.x + by.x, y: point.y + by.y };
}
