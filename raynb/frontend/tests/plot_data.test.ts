import { describe, expect, it } from "vitest";
import { badEnd, hasEpoch, plotData as plot, smoothed, worstFirst, type PlotData, type PlotOptions, type PlotSource } from "../src/plot_data";
import { Band, Series } from "../src/series";
import { bucket, type BandBucket, type Bucket } from "./messages";

const OPTIONS: PlotOptions = { x: "step", log: false, smooth: 0, pinned: new Set() };

function plotData(
  series: Map<number, Series[]>,
  options: Partial<PlotOptions> = {},
  source: Partial<PlotSource> = {},
): PlotData {
  return plot({ metric: "loss", series, bands: [], worst: null, ...source }, { ...OPTIONS, ...options });
}

function rows(buckets: readonly (readonly number[])[], count: number): Float64Array {
  return Float64Array.from(Array.from({ length: count }, (_, row) => buckets.map((b) => b[row] ?? 0)).flat());
}

function one(buckets: readonly Bucket[], rank = 0, attempt = 0): Series {
  const made = new Series("loss", rank, attempt);
  made.apply({ metric: "loss", attempt, start: 0, n: buckets.length, values: rows(buckets, 6) });
  return made;
}

function band(buckets: readonly BandBucket[], attempt = 0): Band {
  const made = new Band("loss", attempt);
  made.apply({ metric: "loss", attempt, start: 0, n: buckets.length, values: rows(buckets, 7) });
  return made;
}

/** Median, smallest, largest of 1,000 ranks at a step. */
function across(step: number, median: number, lo = median - 1, hi = median + 1): BandBucket {
  return [step, step / 10, step / 100, median, lo, hi, 1_000];
}

function ranks(count: number, of: (rank: number) => readonly Bucket[]): Map<number, Series[]> {
  return new Map(Array.from({ length: count }, (_, rank) => [rank, [one(of(rank), rank)]]));
}

describe("a line a rank", () => {
  it("aligns ranks that report at different steps", () => {
    const data = plotData(
      new Map([
        [1, [one([bucket(2, 20), bucket(3, 30)], 1)]],
        [0, [one([bucket(1, 10), bucket(3, 12)])]],
      ]),
    );
    expect(data.x).toEqual([1, 2, 3]);
    expect(data.lines.map((line) => line.label)).toEqual(["rank 0", "rank 1"]);
    expect(data.lines[0]?.values).toEqual([10, undefined, 12]);
    expect(data.lines[1]?.values).toEqual([undefined, 20, 30]);
  });

  it("plots against time", () => {
    const data = plotData(ranks(1, () => [bucket(10, 1), bucket(20, 2)]), { x: "time" });
    expect(data.x).toEqual([1, 2]);
  });

  it("leaves a gap for NaN and says whose newest value is none", () => {
    const data = plotData(ranks(2, (rank) => [bucket(1, 1), bucket(2, rank === 1 ? Number.NaN : 2)]));
    expect(data.lines[1]?.values).toEqual([1, null]);
    expect(data.notFinite).toEqual([1]);
  });

  it("leaves out what has no logarithm and says so", () => {
    const data = plotData(ranks(1, () => [bucket(1, 0), bucket(2, 2)]), { log: true });
    expect(data.lines[0]?.values).toEqual([null, 2]);
    expect(data.notPositive).toBe(true);
  });

  it("lets an attempt that resumed replace the steps it repeats", () => {
    const data = plotData(
      new Map([[0, [one([bucket(1, 1), bucket(2, 2), bucket(3, 3)]), one([bucket(2, 20), bucket(4, 40)], 0, 1)]]]),
    );
    expect(data.x).toEqual([1, 2, 4]);
    expect(data.lines[0]?.values).toEqual([1, 20, 40]);
  });

  it("shows the range of buckets that stand for many records", () => {
    const data = plotData(ranks(1, () => [[1, 1, 0, 5, 4, 6], [2, 2, 0, 5, 5, 5]]));
    expect(data.lines[0]?.band).toEqual([[4, 5], [6, 5]]);
    expect(plotData(ranks(1, () => [bucket(1, 1)])).lines[0]?.band).toBeNull();
  });

  it("survives steps that go back or are no numbers", () => {
    const data = plotData(ranks(1, () => [bucket(5, 1), bucket(3, 2), bucket(Number.NaN, 3), bucket(6, 4)]));
    expect(data.x).toEqual([5, 6]);
  });

  it("has nothing to draw for nothing", () => {
    expect(plotData(new Map())).toMatchObject({ x: [], lines: [], ranks: 0 });
  });
});

describe("epochs", () => {
  it("are an x axis where they are known", () => {
    const series = ranks(1, () => [bucket(50, 1), bucket(150, 2)]);
    expect(plotData(series, { x: "epoch" }).x).toEqual([0.5, 1.5]);
    expect(hasEpoch({ metric: "loss", series, bands: [], worst: null })).toBe(true);
  });

  it("are no axis where they are not", () => {
    const [step, time, , ...values] = bucket(1, 1);
    const series = ranks(1, () => [[step, time, Number.NaN, ...values] as Bucket]);
    expect(hasEpoch({ metric: "loss", series, bands: [], worst: null })).toBe(false);
    expect(plotData(series, { x: "epoch" }).x).toEqual([]);
  });
});

describe("gaps", () => {
  it("are marked by what they are, and told as newest value", () => {
    const series = ranks(1, () => [bucket(1, 1), bucket(2, Number.POSITIVE_INFINITY), bucket(3, Number.NaN)]);
    const [line] = plotData(series).lines;
    expect([...(line?.odd ?? [])]).toEqual([[1, Number.POSITIVE_INFINITY], [2, Number.NaN]]);
    expect(line?.newest).toBeNaN();
  });

  it("are at the right place where ranks report at other steps", () => {
    const data = plotData(new Map([[0, [one([bucket(1, 1), bucket(3, Number.NaN)])]], [1, [one([bucket(2, 1)], 1)]]]));
    expect([...(data.lines[0]?.odd.keys() ?? [])]).toEqual([2]);
  });
});

describe("smoothing", () => {
  it("averages with the weight of the past, without the pull of its start", () => {
    expect(smoothed([4, 4, 4], 0.9)).toEqual([4, 4, 4].map((value) => expect.closeTo(value) as number));
    const [, second] = smoothed([0, 1], 0.5);
    expect(second).toBeCloseTo(0.5 / 0.75);
  });

  it("keeps gaps, and the average across them", () => {
    const values = smoothed([2, Number.NaN, 2], 0.5);
    expect(values[1]).toBeNaN();
    expect(values[2]).toBeCloseTo(2);
  });

  it("keeps the values as they came beside the line", () => {
    const series = ranks(1, () => [bucket(1, 0), bucket(2, 10)]);
    const [line] = plotData(series, { smooth: 0.5 }).lines;
    expect(line?.raw).toEqual([0, 10]);
    expect(line?.values[1]).toBeCloseTo(5 / 0.75);
    expect(line?.newest).toBe(10);
    expect(plotData(series).lines[0]?.raw).toBeNull();
  });
});

describe("many ranks", () => {
  const own = new Map([3, 5, 8].map((rank) => [rank, [one([bucket(1, rank), bucket(2, rank)], rank)]]));

  it("are the median with its band, the worst rank and the pinned ones", () => {
    const data = plotData(own, { pinned: new Set([8]) }, { bands: [band([across(1, 5), across(2, 4)])], worst: 3 });
    expect(data.lines.map(({ key, label, kind }) => [key, label, kind])).toEqual([
      ["median", "median, min to max", "median"],
      ["worst", "worst: rank 3", "worst"],
      ["rank-8", "rank 8", "rank"],
    ]);
    expect(data.lines[0]?.values).toEqual([5, 4]);
    expect(data.lines[0]?.band).toEqual([[4, 3], [6, 5]]);
    expect(data.ranks).toBe(1_000);
  });

  it("join attempts as ranks do", () => {
    const bands = [band([across(1, 1), across(2, 2), across(3, 3)]), band([across(2, 20), across(4, 40)], 1)];
    const data = plotData(new Map(), {}, { bands });
    expect(data.x).toEqual([1, 2, 4]);
    expect(data.lines[0]?.values).toEqual([1, 20, 40]);
  });

  it("stand at steps of their own", () => {
    const data = plotData(own, {}, { bands: [band([across(1.5, 5)])], worst: 5 });
    expect(data.x).toEqual([1, 1.5, 2]);
    expect(data.lines.map(({ values }) => values)).toEqual([[undefined, 5, undefined], [5, undefined, 5]]);
  });

  it("a pinned rank of few is drawn before the others", () => {
    const data = plotData(own, { pinned: new Set([5]) });
    expect(data.lines.map(({ pinned }) => pinned)).toEqual([false, true, false]);
  });

  it("more lines than a chart can hold are left out and counted", () => {
    const data = plotData(ranks(70, (rank) => [bucket(1, rank)]));
    expect([data.lines.length, data.left]).toEqual([64, 6]);
  });
});

describe("the bad end", () => {
  it.each([
    ["train_loss", "high"], ["valLoss", "high"], ["wer", "high"], ["top1/acc", "low"], ["mAP", "low"], ["val_map", "low"],
    ["f1", "low"], ["swerve", null], ["accuracy.val", "low"], ["lr", null], ["interrupted", null],
  ])("of %s is %s", (metric, end) => expect(badEnd(metric)).toBe(end));

  it.each([
    ["loss", [Number.NaN, 9, 5, 1]],
    ["acc", [Number.NaN, 1, 5, 9]],
    ["weight", [Number.NaN, 1, 9, 5]],
  ])("comes first in %s", (metric, order) => {
    expect(worstFirst(metric, [5, 1, Number.NaN, 9], (value) => value)).toEqual(order);
  });
});

it("sixteen ranks of 1,000 buckets take little of a frame", () => {
  const series = ranks(16, (rank) => Array.from({ length: 1_000 }, (_, i) => bucket(i, rank + i)));
  plotData(series);
  const begun = performance.now();
  for (let i = 0; i < 10; i++) plotData(series, { smooth: 0.5 });
  expect((performance.now() - begun) / 10).toBeLessThan(50);
});
