/** The text format of Prometheus, as far as our own figures use it. */
export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function parse(text: string): Sample[] {
  return text.split("\n").flatMap((line) => {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (!match) return [];
    const labels = Object.fromEntries(
      [...(match[2] ?? "").matchAll(LABEL)].map((found) => [found[1]!, found[2]!.replace(/\\(.)/g, "$1")]),
    );
    return [{ name: match[1]!, labels, value: toNumber(match[3]!) }];
  });
}

function toNumber(text: string): number {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

export function total(samples: readonly Sample[], name: string, labels: Record<string, string> = {}): number {
  return samples
    .filter((one) => one.name === name && Object.entries(labels).every(([key, value]) => one.labels[key] === value))
    .reduce((sum, one) => sum + one.value, 0);
}

/** Upper bounds and how many observations lie below each, summed over all other labels. */
export type Buckets = ReadonlyMap<number, number>;

export function buckets(samples: readonly Sample[], name: string): Buckets {
  const found = new Map<number, number>();
  for (const one of samples) {
    if (one.name !== `${name}_bucket`) continue;
    const bound = toNumber(one.labels.le ?? "");
    found.set(bound, (found.get(bound) ?? 0) + one.value);
  }
  return found;
}

/** What was observed between two readings. A counter that went back was started anew. */
export function since(later: Buckets, earlier: Buckets): Buckets {
  const isRestarted = (later.get(Infinity) ?? 0) < (earlier.get(Infinity) ?? 0);
  if (isRestarted) return later;
  return new Map([...later].map(([bound, value]) => [bound, value - (earlier.get(bound) ?? 0)]));
}

/** Estimated as Prometheus does: level inside a bucket. Null when nothing was observed. */
export function quantile(q: number, of: Buckets): number | null {
  const bounds = [...of.keys()].sort((a, b) => a - b);
  const count = of.get(Infinity) ?? 0;
  if (count <= 0) return null;
  const rank = q * count;
  let lower = 0;
  let below = 0;
  for (const bound of bounds) {
    const here = of.get(bound) ?? 0;
    if (here >= rank) {
      if (bound === Infinity) return lower;
      return here === below ? bound : lower + ((bound - lower) * (rank - below)) / (here - below);
    }
    lower = bound;
    below = here;
  }
  return lower;
}
