const WIDTH = 100;
const HEIGHT = 28;

/** A line without axes. Where there is no value it has a gap. */
export function Spark({ values, tone }: { values: readonly (number | null)[]; tone: string }) {
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, Number.MIN_VALUE);
  const low = known.length > 0 && Math.min(...known) > top * 0.5 ? Math.min(...known) : 0;
  const x = (at: number) => ((at / Math.max(values.length - 1, 1)) * WIDTH).toFixed(1);
  const y = (value: number) =>
    (HEIGHT - 2 - ((value - low) / Math.max(top - low, Number.MIN_VALUE)) * (HEIGHT - 4)).toFixed(1);
  const path = values
    .map((value, at) =>
      value === null ? "" : `${at > 0 && values[at - 1] !== null ? "L" : "M"}${x(at)} ${y(value)}h0`,
    )
    .join("");
  return (
    <svg class={`spark tone-${tone}`} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path d={path} />
    </svg>
  );
}
