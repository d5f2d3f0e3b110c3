import { describe, expect, it } from "vitest";
import { Series } from "../src/model";
import { plotData, type PlotOptions } from "../src/plot_data";
import { bucket, type Bucket } from "./messages";

const OPTIONS: PlotOptions = { metric: "loss", x: "step", log: false, pinned: new Set() };

function one(buckets: readonly Bucket[], rank = 0, attempt = 0): Series {
  const made = new Series("loss", rank, attempt);
  const values = Float64Array.from([0, 1, 2, 3, 4].flatMap((row) => buckets.map((b) => b[row] ?? 0)));
  made.apply({ metric: "loss", rank, attempt, start: 0, n: buckets.length, values });
  return made;
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
      OPTIONS,
    );
    expect(data.x).toEqual([1, 2, 3]);
    expect(data.lines.map((line) => line.label)).toEqual(["rank 0", "rank 1"]);
    expect(data.lines[0]?.values).toEqual([10, undefined, 12]);
    expect(data.lines[1]?.values).toEqual([undefined, 20, 30]);
  });

  it("plots against time", () => {
    const data = plotData(ranks(1, () => [bucket(10, 1), bucket(20, 2)]), { ...OPTIONS, x: "time" });
    expect(data.x).toEqual([1, 2]);
  });

  it("leaves a gap for NaN and says whose newest value is none", () => {
    const data = plotData(ranks(2, (rank) => [bucket(1, 1), bucket(2, rank === 1 ? Number.NaN : 2)]), OPTIONS);
    expect(data.lines[1]?.values).toEqual([1, null]);
    expect(data.notFinite).toEqual([1]);
  });

  it("leaves out what has no logarithm and says so", () => {
    const data = plotData(ranks(1, () => [bucket(1, 0), bucket(2, 2)]), { ...OPTIONS, log: true });
    expect(data.lines[0]?.values).toEqual([null, 2]);
    expect(data.notPositive).toBe(true);
  });

  it("lets an attempt that resumed replace the steps it repeats", () => {
    const data = plotData(
      new Map([[0, [one([bucket(1, 1), bucket(2, 2), bucket(3, 3)]), one([bucket(2, 20), bucket(4, 40)], 0, 1)]]]),
      OPTIONS,
    );
    expect(data.x).toEqual([1, 2, 4]);
    expect(data.lines[0]?.values).toEqual([1, 20, 40]);
  });

  it("shows the range of buckets that stand for many records", () => {
    const data = plotData(ranks(1, () => [[1, 1, 5, 4, 6], [2, 2, 5, 5, 5]]), OPTIONS);
    expect(data.lines[0]?.band).toEqual([[4, 5], [6, 5]]);
    expect(plotData(ranks(1, () => [bucket(1, 1)]), OPTIONS).lines[0]?.band).toBeNull();
  });

  it("survives steps that go back or are no numbers", () => {
    const data = plotData(ranks(1, () => [bucket(5, 1), bucket(3, 2), bucket(Number.NaN, 3), bucket(6, 4)]), OPTIONS);
    expect(data.x).toEqual([5, 6]);
  });

  it("has nothing to draw for nothing", () => {
    expect(plotData(new Map(), OPTIONS)).toMatchObject({ x: [], lines: [], ranks: [] });
  });
});

describe("many ranks", () => {
  it("stay lines up to sixteen", () => {
    expect(plotData(ranks(16, (rank) => [bucket(1, rank)]), OPTIONS).lines).toHaveLength(16);
  });

  it("become median, band and the worst", () => {
    const data = plotData(ranks(17, (rank) => [bucket(1, rank), bucket(2, rank === 3 ? 99 : rank)]), OPTIONS);
    expect(data.aggregated).toBe(true);
    const [median, worst] = data.lines;
    expect(median?.values).toEqual([8, 9]);
    expect(median?.band).toEqual([[0, 0], [16, 99]]);
    expect(worst).toMatchObject({ kind: "worst", rank: 3, label: "worst: rank 3" });
  });

  it("take the lowest as the worst where high is good", () => {
    const data = plotData(ranks(17, (rank) => [bucket(1, rank + 1)]), { ...OPTIONS, metric: "val_accuracy" });
    expect(data.lines[1]?.label).toBe("worst: rank 0");
  });

  it("look at the farthest where the name tells nothing", () => {
    const data = plotData(ranks(17, (rank) => [bucket(1, rank === 5 ? -50 : rank)]), { ...OPTIONS, metric: "weight" });
    expect(data.lines[1]?.label).toBe("farthest from the median: rank 5");
  });

  it("look at a rank without a number first", () => {
    const data = plotData(ranks(20, (rank) => [bucket(1, rank === 7 ? Number.NaN : rank)]), OPTIONS);
    expect(data.lines[1]).toMatchObject({ rank: 7, label: "not a number: rank 7" });
  });

  it("keep the lines of pinned ranks", () => {
    const data = plotData(ranks(20, (rank) => [bucket(1, rank)]), { ...OPTIONS, pinned: new Set([4, 9]) });
    expect(data.lines.map((line) => line.key)).toEqual(["median", "worst", "rank-4", "rank-9"]);
  });

  it("stay quick: 512 ranks of 1,000 buckets", () => {
    const byRank = ranks(512, (rank) => Array.from({ length: 1_000 }, (_, i) => bucket(i, rank + i)));
    const begun = performance.now();
    const data = plotData(byRank, OPTIONS);
    expect(data.x.length).toBeLessThanOrEqual(600);
    expect(data.x.at(-1)).toBe(999);
    expect(performance.now() - begun).toBeLessThan(1_000);
  });
});
