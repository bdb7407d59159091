import { describe, expect, it } from "vitest";
import { line, roundUp, scaleOf } from "../src/metrics/chart";
import { quantiles, type Reading, rates, reading } from "../src/metrics/history";
import { buckets, parse, quantile, since, total } from "../src/metrics/prometheus";

const TEXT = `# HELP pyoco_runs_total Runs in the store, by status.
# TYPE pyoco_runs_total gauge
pyoco_runs_total{status="RUNNING"} 2.0
pyoco_runs_total{status="CANCELLING"} 1.0
pyoco_runs_total{status="PENDING"} 3.0
pyoco_workers_alive_total 4.0
pyoco_run_duration_seconds_bucket{le="1.0",status="COMPLETED"} 5.0
pyoco_run_duration_seconds_bucket{le="10.0",status="COMPLETED"} 9.0
pyoco_run_duration_seconds_bucket{le="+Inf",status="COMPLETED"} 10.0
pyoco_run_duration_seconds_bucket{le="+Inf",status="FAILED"} 1.0
pyoco_run_duration_seconds_count{status="COMPLETED"} 10.0
odd{path="a\\"b,c"} 1
`;

describe("the text of Prometheus", () => {
  const samples = parse(TEXT);

  it("becomes samples with labels", () => {
    expect(samples[0]).toEqual({ name: "pyoco_runs_total", labels: { status: "RUNNING" }, value: 2 });
    expect(samples.at(-1)?.labels.path).toBe('a"b,c');
    expect(total(samples, "pyoco_runs_total")).toBe(6);
  });

  it("becomes a reading", () => {
    expect(reading(samples, 7)).toMatchObject({ at: 7, running: 3, pending: 3, workers: 4, ended: { completed: 10 } });
  });

  it("gives buckets over all labels", () => {
    expect(buckets(samples, "pyoco_run_duration_seconds").get(Infinity)).toBe(11);
  });
});

describe("quantiles", () => {
  const seen = new Map([
    [1, 50],
    [10, 100],
    [Infinity, 100],
  ]);

  it("are estimated inside their bucket", () => {
    expect(quantile(0.25, seen)).toBe(0.5);
    expect(quantile(0.75, seen)).toBe(5.5);
  });

  it("of nothing are nothing; beyond the last bound they are that bound", () => {
    expect(quantile(0.5, new Map([[Infinity, 0]]))).toBeNull();
    expect(
      quantile(
        0.5,
        new Map([
          [1, 0],
          [Infinity, 4],
        ]),
      ),
    ).toBe(1);
  });

  it("are of what happened between two readings, also after a restart", () => {
    const later = new Map([
      [1, 60],
      [10, 100],
      [Infinity, 100],
    ]);
    expect(since(later, seen).get(1)).toBe(10);
    expect(since(new Map([[Infinity, 3]]), seen).get(Infinity)).toBe(3);
  });
});

function at(time: number, completed: number): Reading {
  return {
    at: time,
    running: 0,
    pending: 0,
    workers: 0,
    deadLetters: 0,
    ended: { completed, failed: 0, cancelled: 0 },
    durations: new Map([
      [1, completed],
      [Infinity, completed],
    ]),
    waits: new Map(),
    http: new Map(),
  };
}

describe("over time", () => {
  it("rates are per minute, and a restart is no fall below zero", () => {
    expect(rates([at(0, 10), at(6, 13), at(12, 2)], "completed").map((point) => point.value)).toEqual([30, 20]);
  });

  it("quantiles look back one minute", () => {
    const points = quantiles([at(0, 0), at(30, 5), at(120, 5)], "durations", 0.5);
    expect(points.map((point) => point.value)).toEqual([0.5, null]);
  });
});

describe("charts", () => {
  it("have gaps where there is no value, and dots where one stands alone", () => {
    const points = [0, 1, 2, 3].map((time) => ({ at: time, value: time === 1 ? null : time }));
    const scale = { from: 0, to: 4, top: 4 };
    expect(line(points, scale, 100, 100)).toBe("M0.0 100.0h0M50.0 50.0L75.0 25.0");
  });

  it("end in round figures above their values", () => {
    expect([0, 0.3, 0.96, 1, 4.9, 180].map(roundUp)).toEqual([1, 0.5, 2, 2, 10, 200]);
    expect(scaleOf([[{ at: 1000, value: 3 }]], 120)).toEqual({ from: 880, to: 1000, top: 5 });
  });
});
