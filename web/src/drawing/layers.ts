/**
 * Layers from left to right (Sugiyama's method): ranks, lines cut into pieces of one layer each, an order with few
 * crossings, then heights that keep lines straight.
 */
export interface Item {
  id: string;
  width: number;
  height: number;
  /** It stands in the first or the last layer, where a line leaves the picture. */
  side?: "first" | "last";
}

export interface Link {
  from: string;
  to: string;
  /** Where it touches its ends, below their middle. */
  fromDy?: number;
  toDy?: number;
  label?: { width: number; height: number } | undefined;
}

export interface Point {
  x: number;
  y: number;
}

export interface Layered {
  /** The middle of every item. */
  at: Map<string, Point>;
  /** Of every link: the points between its ends, and the middle of its label. */
  routes: { points: Point[]; labelAt: Point | null }[];
  width: number;
  height: number;
}

const BETWEEN_NODES = 14;
const BETWEEN_LINES = 8;
const BETWEEN_LAYERS = 46;
const ORDERINGS = 8;
const ALIGNMENTS = 12;
/** Of a piece of a long line: bends are seen first. */
const STRAIGHT = 8;

/** An item, or the place where a line passes a layer. */
interface Spot {
  rank: number;
  width: number;
  height: number;
  isLine: boolean;
  y: number;
  before: Piece[];
  after: Piece[];
}

/** From a layer to the next. `dy`: how much lower the end is than the start, if the line is level. */
interface Piece {
  to: Spot;
  dy: number;
  weight: number;
}

/** With labels there is a layer for them between any two. */
export function spanOf(links: readonly Link[]): number {
  return links.some((link) => link.label) ? 2 : 1;
}

/** The layer of every item; lines that would close a circle are taken the other way round. */
export function ranksOf(
  items: readonly Item[],
  links: readonly Link[],
): { rank: Map<string, number>; back: Set<Link> } {
  const span = spanOf(links);
  const leaving = new Map<string, Link[]>(items.map((item) => [item.id, []]));
  for (const link of links) leaving.get(link.from)!.push(link);
  const { order, back } = sorted(items, leaving);
  const ends = (link: Link) => (back.has(link) ? [link.to, link.from] : [link.from, link.to]) as [string, string];
  const into = new Map<string, string[]>(order.map((id) => [id, []]));
  const out = new Map<string, string[]>(order.map((id) => [id, []]));
  for (const link of links) {
    const [from, to] = ends(link);
    if (from === to) continue;
    into.get(to)!.push(from);
    out.get(from)!.push(to);
  }
  const rank = new Map<string, number>();
  for (const id of order) rank.set(id, Math.max(0, ...into.get(id)!.map((one) => rank.get(one)! + span)));
  const last = Math.max(0, ...rank.values());
  const sides = new Map(items.map((item) => [item.id, item.side]));
  for (const id of [...order].reverse()) {
    const next = out.get(id)!;
    if (sides.get(id) === "last") rank.set(id, last);
    else if (sides.get(id) !== "first" && next.length > into.get(id)!.length)
      rank.set(id, Math.min(...next.map((one) => rank.get(one)!)) - span); // its lines are shorter there
  }
  return { rank, back };
}

/** Everything behind what leads to it. */
function sorted(items: readonly Item[], leaving: Map<string, Link[]>): { order: string[]; back: Set<Link> } {
  const back = new Set<Link>();
  const state = new Map<string, "open" | "done">();
  const order: string[] = [];
  for (const { id: start } of items) {
    if (state.has(start)) continue;
    state.set(start, "open");
    const way = [{ id: start, next: 0 }];
    for (let here = way.at(-1); here !== undefined; here = way.at(-1)) {
      const link = leaving.get(here.id)![here.next++];
      if (link === undefined) {
        state.set(here.id, "done");
        order.unshift(here.id);
        way.pop();
      } else if (state.get(link.to) === "open") back.add(link);
      else if (!state.has(link.to)) {
        state.set(link.to, "open");
        way.push({ id: link.to, next: 0 });
      }
    }
  }
  return { order, back };
}

export function layered(items: readonly Item[], links: readonly Link[]): Layered {
  const { rank, back } = ranksOf(items, links);
  const spots = new Map(items.map((item) => [item.id, spot(rank.get(item.id)!, item.width, item.height, false)]));
  const lines = links.map((link) => lineOf(link, spots, back.has(link)));
  const layers = ordered([...spots.values()], lines.flat());
  align(layers);
  const all = layers.flat();
  const highest = all.reduce((least, one) => Math.min(least, one.y - one.height / 2), Number.POSITIVE_INFINITY);
  const columns = columnsOf(layers, BETWEEN_LAYERS / spanOf(links));
  const point = (one: Spot): Point => ({ x: columns[one.rank]!.x, y: one.y - highest });
  const routes = lines.map((passed, n) => {
    const labelled = passed.find((one) => one.width > 0);
    const points = passed.flatMap((one) => {
      const { x, y } = point(one);
      const half = Math.max(columns[one.rank]!.width, one.width) / 2;
      return half > 0
        ? [
            { x: x - half, y },
            { x: x + half, y },
          ]
        : [{ x, y }];
    });
    return { points: back.has(links[n]!) ? points.reverse() : points, labelAt: labelled ? point(labelled) : null };
  });
  return {
    at: new Map([...spots].map(([id, one]) => [id, point(one)])),
    routes,
    width: columns.reduce((most, one) => Math.max(most, one.x + one.width / 2), 0),
    height: all.reduce((most, one) => Math.max(most, one.y - highest + one.height / 2), 0),
  };
}

function spot(rank: number, width: number, height: number, isLine: boolean): Spot {
  return { rank, width, height, isLine, y: 0, before: [], after: [] };
}

/** The places where a link passes layers, connected with each other and with its ends. */
function lineOf(link: Link, spots: Map<string, Spot>, isBack: boolean): Spot[] {
  const ends = [
    { at: spots.get(link.from)!, dy: link.fromDy ?? 0 },
    { at: spots.get(link.to)!, dy: link.toDy ?? 0 },
  ];
  const [start, end] = (isBack ? ends.reverse() : ends) as [(typeof ends)[0], (typeof ends)[0]];
  const length = end.at.rank - start.at.rank;
  const labelled = start.at.rank + Math.floor(length / 2);
  const passed = Array.from({ length: Math.max(0, length - 1) }, (_, n) => {
    const rank = start.at.rank + n + 1;
    const label = rank === labelled ? link.label : undefined;
    return spot(rank, label?.width ?? 0, label?.height ?? 1, true);
  });
  if (length <= 0) return passed;
  const chain = [start.at, ...passed, end.at];
  for (let n = 1; n < chain.length; n++) {
    const [from, to] = [chain[n - 1]!, chain[n]!];
    const dy = (n === 1 ? start.dy : 0) - (n === chain.length - 1 ? end.dy : 0);
    const weight = from.isLine || to.isLine ? (from.isLine && to.isLine ? STRAIGHT : 2) : 1;
    from.after.push({ to, dy, weight });
    to.before.push({ to: from, dy: -dy, weight });
  }
  return passed;
}

/** Layers, each from top to bottom, with few crossings; without a reason siblings keep their order. */
function ordered(nodes: readonly Spot[], lines: readonly Spot[]): Spot[][] {
  const layers: Spot[][] = [];
  for (const one of [...nodes, ...lines]) layers[one.rank] ??= [];
  const seen = new Set<Spot>();
  const starts = [...nodes].sort((a, b) => a.rank - b.rank);
  const way: Spot[] = starts.reverse();
  for (let one = way.pop(); one !== undefined; one = way.pop()) {
    if (seen.has(one)) continue;
    seen.add(one);
    layers[one.rank]!.push(one);
    way.push(...one.after.map((piece) => piece.to).reverse());
  }
  let shown = Array.from(layers, (layer) => layer ?? []);
  let best = { layers: shown, crossings: crossings(shown) };
  for (let n = 0; n < ORDERINGS && best.crossings > 0; n++) {
    shown = swept(shown, n % 2 === 0);
    const found = crossings(shown);
    if (found < best.crossings) best = { layers: shown, crossings: found };
  }
  return best.layers;
}

function swept(layers: readonly Spot[][], isForward: boolean): Spot[][] {
  const result = layers.map((layer) => [...layer]);
  for (const layer of isForward ? result : [...result].reverse()) {
    const place = placesIn(result);
    const wanted = new Map(
      layer.map((one) => {
        const near = isForward ? one.before : one.after;
        const sum = near.reduce((total, piece) => total + place.get(piece.to)!, 0);
        return [one, near.length ? sum / near.length : place.get(one)!];
      }),
    );
    layer.sort((a, b) => wanted.get(a)! - wanted.get(b)!);
  }
  return result;
}

/** From 0 to 1: layers of different lengths are compared. */
function placesIn(layers: readonly Spot[][]): Map<Spot, number> {
  return new Map(layers.flatMap((layer) => layer.map((one, n) => [one, (n + 0.5) / layer.length] as const)));
}

function crossings(layers: readonly Spot[][]): number {
  const place = placesIn(layers);
  let found = 0;
  for (const layer of layers) {
    const ends = layer.flatMap((one) => one.after.map((piece) => place.get(piece.to)!).sort((a, b) => a - b));
    for (let n = 1; n < ends.length; n++) for (let m = 0; m < n; m++) if (ends[m]! > ends[n]!) found++;
  }
  return found;
}

/** Heights: again and again every layer as near to its neighbours as its order allows. */
function align(layers: readonly Spot[][]): void {
  for (const layer of layers) settle(layer, () => ({ y: 0, weight: 1 }));
  for (let n = 0; n < ALIGNMENTS; n++) {
    const near = (one: Spot) =>
      n >= ALIGNMENTS - 2 ? [...one.before, ...one.after] : n % 2 === 0 ? one.before : one.after;
    for (const layer of n % 2 === 0 ? layers : [...layers].reverse()) {
      settle(layer, (one) => {
        const pieces = near(one);
        const weight = pieces.reduce((sum, piece) => sum + piece.weight, 0);
        if (weight === 0) return { y: one.y, weight: 0.1 };
        return { y: pieces.reduce((sum, { to, dy, weight: w }) => sum + (to.y - dy) * w, 0) / weight, weight };
      });
    }
  }
}

/** As near as possible to where they want to be, by squares, without changing places or touching (pool adjacent violators). */
function settle(layer: readonly Spot[], wish: (one: Spot) => { y: number; weight: number }): void {
  let below = 0;
  const offsets = layer.map((one, n) => {
    const last = layer[n - 1];
    if (last) below += (last.height + one.height) / 2 + (last.isLine && one.isLine ? BETWEEN_LINES : BETWEEN_NODES);
    return below;
  });
  const blocks: { sum: number; weight: number; size: number }[] = [];
  for (const [n, one] of layer.entries()) {
    const { y, weight } = wish(one);
    let block = { sum: (y - offsets[n]!) * weight, weight, size: 1 };
    for (let last = blocks.at(-1); last && last.sum / last.weight >= block.sum / block.weight; last = blocks.at(-1)) {
      blocks.pop();
      block = { sum: last.sum + block.sum, weight: last.weight + block.weight, size: last.size + block.size };
    }
    blocks.push(block);
  }
  let n = 0;
  for (const { sum, weight, size } of blocks) {
    for (const end = n + size; n < end; n++) layer[n]!.y = sum / weight + offsets[n]!;
  }
}

function columnsOf(layers: readonly Spot[][], gap: number): { x: number; width: number }[] {
  let end = -gap;
  return layers.map((layer) => {
    const width = layer.reduce((most, one) => Math.max(most, one.width), 0);
    const x = end + gap + width / 2;
    end = x + width / 2;
    return { x, width };
  });
}
