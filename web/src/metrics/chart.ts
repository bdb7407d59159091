/** Lines of a chart: from points in time to places on paper. */
import type { Point } from "./history";

export interface Scale {
  from: number;
  to: number;
  top: number;
}

export function scaleOf(series: readonly (readonly Point[])[], minSpan: number): Scale {
  const times = series.flatMap((points) => points.map((point) => point.at));
  const values = series.flatMap((points) => points.flatMap((point) => point.value ?? []));
  const to = Math.max(...times, 0);
  const from = Math.min(...times, to - minSpan);
  return { from, to, top: roundUp(Math.max(...values, 0)) };
}

/** The next round figure, so that lines do not touch the ceiling and the axis reads well. */
export function roundUp(value: number): number {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((step) => step * unit >= value * 1.05) ?? 20) * unit;
}

export function x(at: number, scale: Scale, width: number): number {
  return ((at - scale.from) / Math.max(scale.to - scale.from, 0.001)) * width;
}

export function y(value: number, scale: Scale, height: number): number {
  return height - (value / scale.top) * height;
}

/** An SVG path; where there is no value the line has a gap, and a value alone is a dot. */
export function line(points: readonly Point[], scale: Scale, width: number, height: number): string {
  let path = "";
  points.forEach((point, n) => {
    if (point.value === null) return;
    const place = `${x(point.at, scale, width).toFixed(1)} ${y(point.value, scale, height).toFixed(1)}`;
    const isFirst = (points[n - 1]?.value ?? null) === null;
    const isAlone = isFirst && (points[n + 1]?.value ?? null) === null;
    path += `${isFirst ? "M" : "L"}${place}${isAlone ? "h0" : ""}`;
  });
  return path;
}

export function nearest(points: readonly Point[], at: number): Point | null {
  let best: Point | null = null;
  for (const point of points) {
    if (best === null || Math.abs(point.at - at) < Math.abs(best.at - at)) best = point;
  }
  return best;
}

export function latest(points: readonly Point[]): number | null {
  return points.at(-1)?.value ?? null;
}
