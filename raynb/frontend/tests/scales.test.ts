import { describe, expect, it } from "vitest";
import { dragged, gripAt, nudged } from "../src/brushing";
import { categoryScale, extentOf, linearScale, logScale, niceStep } from "../src/scales";

describe("scales", () => {
  it.each([
    [linearScale(0, 10), 2.5, 0.25],
    [logScale(1e-6, 1e-2), 1e-4, 0.5],
    [categoryScale(["a", "b", "c", "d"]), 1, 0.375],
  ] as const)("place and value are each other's inverse", (scale, value, place) => {
    expect(scale.place(value)).toBeCloseTo(place, 9);
    expect(scale.value(place)).toBeCloseTo(value, 9);
  });

  it("ticks are round numbers within the axis", () => {
    expect(linearScale(0, 1).ticks(5).map(({ label }) => label)).toEqual(["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    expect(linearScale(1, 3, String, true).ticks(10).map(({ label }) => label)).toEqual(["1", "2", "3"]);
    expect(logScale(1e-6, 1e-2, String).ticks(5).map(({ label }) => label)).toEqual(["0.000001", "0.00001", "0.0001", "0.001", "0.01"]);
    expect(logScale(2, 3, String).ticks(2).map(({ label }) => label)).toEqual(["2", "3"]);
  });

  it("a single value has an axis", () => {
    for (const scale of [linearScale(3, 3), linearScale(0, 0), logScale(5, 5)]) {
      const at = scale.place(scale.kind === "log" ? 5 : scale.low === -1 ? 0 : 3);
      expect(at).toBeCloseTo(0.5, 6);
    }
  });

  it("a logarithm has no place for what is not positive", () => {
    expect(logScale(1, 10).place(0)).toBeNaN();
    expect(logScale(1, 10).place(-1)).toBeNaN();
  });

  it("a value far out does not count", () => {
    const values = Array.from({ length: 20 }, (_, i) => 1 + i / 20);
    expect(extentOf(values)).toEqual({ low: 1, high: 1.95, outside: 0 });
    expect(extentOf([...values, 1e9])).toEqual({ low: 1, high: 1.95, outside: 1 });
    expect(extentOf([1, 1e9])).toEqual({ low: 1, high: 1e9, outside: 0 });
    expect(extentOf([Number.NaN, Number.POSITIVE_INFINITY])).toBeNull();
  });

  it.each([[0.03, 0.05], [0.2, 0.2], [7, 10], [100, 100]])("the nice step from %d is %d", (rough, nice) => {
    expect(niceStep(rough)).toBe(nice);
  });
});

describe("brushing", () => {
  const drag = (grip: Parameters<typeof dragged>[0]["grip"], start: number, range: readonly [number, number] | null, to: number) =>
    dragged({ grip, start, range }, to, 0.02)?.map((end) => Number(end.toFixed(6))) ?? null;

  it("a drag makes, moves and resizes a range, within the axis", () => {
    expect(drag("new", 0.6, null, 0.2)).toEqual([0.2, 0.6]);
    expect(drag("new", 0.6, null, 7)).toEqual([0.6, 1]);
    expect(drag("move", 0.3, [0.2, 0.4], 0.5)).toEqual([0.4, 0.6]);
    expect(drag("move", 0.3, [0.2, 0.4], 5)).toEqual([0.8, 1]);
    expect(drag("to", 0.4, [0.2, 0.4], 0.1)).toEqual([0.1, 0.2]);
    expect(drag("from", 0.2, [0.2, 0.4], 0.3)).toEqual([0.3, 0.4]);
  });

  it("what is too small is no range", () => expect(drag("new", 0.6, null, 0.61)).toBeNull());

  it("ends, middle and outside are told apart", () => {
    const at = (place: number) => gripAt(place, [0.2, 0.4], 0.02);
    expect([0.1, 0.21, 0.3, 0.39, 0.9].map(at)).toEqual(["new", "from", "move", "to", "new"]);
    expect(gripAt(0.5, null, 0.02)).toBe("new");
  });

  it("keys move and widen", () => {
    expect(nudged(null, 0.05, false)).toEqual([0.25, 0.75]);
    expect(nudged([0.2, 0.4], 1, false).map((end) => Number(end.toFixed(6)))).toEqual([0.8, 1]);
    expect(nudged([0.2, 0.4], 0.05, true).map((end) => Number(end.toFixed(6)))).toEqual([0.15, 0.45]);
  });
});
