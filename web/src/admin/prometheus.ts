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
