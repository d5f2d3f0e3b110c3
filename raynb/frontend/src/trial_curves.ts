/** Learning curves as numbers: which there are, and the axes that hold them; no DOM. */
import { formatCount, formatDuration, plural } from "./format";
import type { PanelState } from "./model";
import { Plane } from "./plane";
import { extentOf, linearScale, logScale, niceStep, type Extent } from "./scales";
import type { Series } from "./series";
import type { Trial } from "./search_wire";
import type { Scene } from "./trials_shown";

const MARGIN = { left: 58, right: 14, top: 10, bottom: 24 };

/** One trial's curve, in values. */
export interface Curve {
  trial: Trial;
  x: Float64Array;
  y: Float64Array;
}

/** The curves of the trials that are shown, as far as they have one. */
export function curvesOf(state: PanelState, { shown }: Scene, metric: string, byTime: boolean): Curve[] {
  const series = state.series.get(metric);
  if (series === undefined) return [];
  const began = state.run?.started ?? 0;
  return shown.flatMap((trial) => {
    const own = series.get(trial.trial)?.at(-1);
    if (own === undefined || own.length === 0) return [];
    return [{ trial, x: byTime ? timesOf(own, trial, began) : own.column("step"), y: own.column("last") }];
  });
}

/** Seconds since the trial began; where that is not known, since its first result. */
function timesOf(series: Series, { started }: Trial, began: number): Float64Array {
  const times = series.column("time");
  const from = started === null ? (times[0] ?? 0) : started - began;
  return times.map((time) => time - from);
}

/** The axes that hold all curves, and what the reader should know about them. */
export function planeOf(
  curves: readonly Curve[],
  { search }: Scene,
  byTime: boolean,
  wantsLog: boolean,
  { width, height }: { width: number; height: number },
): { plane: Plane; note: string } {
  let [xLow, xHigh] = [byTime ? 0 : Number.POSITIVE_INFINITY, 1];
  for (const { x } of curves) {
    xLow = Math.min(xLow, x[0] ?? xLow);
    xHigh = Math.max(xHigh, x[x.length - 1] ?? xHigh);
  }
  const extent = yExtent(curves) ?? { low: 0, high: 1, outside: 0 };
  // Out to the next round number: an axis that moves with every report would have all drawn anew.
  const step = niceStep(Math.max(1e-9, xHigh - xLow) / 6, !byTime);
  xHigh = Math.ceil(xHigh / step - 1e-9) * step;
  const box = {
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(50, width - MARGIN.left - MARGIN.right),
    height: height - MARGIN.top - MARGIN.bottom,
  };
  const log = wantsLog && extent.low > 0;
  const x = linearScale(xLow, xHigh, byTime ? formatDuration : formatCount, !byTime);
  const y = log ? logScale(...roundedLog(extent)) : linearScale(...rounded(extent));
  const notes = [
    extent.outside > 0 ? `${plural(extent.outside, "curve")} beyond the chart` : "",
    wantsLog && !log ? "no logarithm of values that are not positive" : "",
    search.mode === null ? "" : search.mode === "min" ? "lower is better" : "higher is better",
  ];
  return { plane: new Plane(box, x, y), note: notes.filter((one) => one !== "").join(" · ") };
}

/** By the curves' own smallest and largest values: one that diverges does not flatten the rest. */
function yExtent(curves: readonly Curve[]): Extent | null {
  const [lows, highs]: [number[], number[]] = [[], []];
  for (const { y } of curves) {
    let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    for (const value of y) {
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) continue;
    lows.push(low);
    highs.push(high);
  }
  const [down, up] = [extentOf(lows), extentOf(highs)];
  if (down === null || up === null) return null;
  return { low: Math.min(down.low, up.low), high: Math.max(down.high, up.high), outside: down.outside + up.outside };
}

function rounded({ low, high }: Extent): [number, number] {
  const room = (high - low) * 0.04;
  const step = niceStep((high - low || Math.abs(high) || 1) / 20);
  return [Math.floor((low - room) / step) * step, Math.ceil((high + room) / step) * step];
}

function roundedLog({ low, high }: Extent): [number, number] {
  const digit = (value: number, to: (ratio: number) => number): number => {
    const power = 10 ** Math.floor(Math.log10(value));
    return Number((to(value / power) * power).toPrecision(1));
  };
  return [digit(low * 0.97, Math.floor), digit(high * 1.03, Math.ceil)];
}

/** The last index whose x is not past the wanted one. */
export function indexAt(x: Float64Array, wanted: number): number {
  let [low, high] = [0, x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((x[middle] ?? 0) <= wanted) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}
