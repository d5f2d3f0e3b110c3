/**
 * From series and bands to what a chart draws: aligned columns, no DOM, no chart library.
 *
 * A run of few ranks has a line a rank. Of many ranks the kernel sends bands:
 * the median, the smallest and the largest value across ranks; then only the
 * worst rank and the pinned ones have lines of their own.
 */
import type { Band, Series } from "./series";

/** Up to this many ranks each line also shows its buckets' min to max. */
const MAX_BANDED = 4;
/** Lines of one chart, whatever the kernel sends. */
export const MAX_LINES = 64;

export type XAxis = "step" | "epoch" | "time";
/** null: a gap (the value is not finite). undefined: no value at this x. */
export type Column = (number | null | undefined)[];

export interface PlotLine {
  key: string;
  label: string;
  kind: "rank" | "median" | "worst";
  rank: number | null;
  /** Whether the reader wants to see it before others. */
  pinned: boolean;
  values: Column;
  /** The values as they came, where `values` are smoothed. */
  raw: Column | null;
  /** From and to of the band around the line. */
  band: [lo: Column, hi: Column] | null;
  /** The values that are no numbers, by index: gaps that a chart marks. */
  odd: Map<number, number>;
  /** As it came, NaN and infinities too; null where there is none. */
  newest: number | null;
}

export interface PlotData {
  metric: string;
  x: number[];
  lines: PlotLine[];
  /** Ranks behind the lines; of bands, those in the newest bucket. */
  ranks: number;
  /** Ranks whose newest value is not finite, as far as they have lines. */
  notFinite: number[];
  /** Whether values had to be left out since a logarithm has none for them. */
  notPositive: boolean;
  /** Ranks that have no line since there are too many. */
  left: number;
}

export interface PlotSource {
  metric: string;
  series: ReadonlyMap<number, Series[]>;
  /** Empty where each rank has its series. */
  bands: readonly Band[];
  worst: number | null;
}

export interface PlotOptions {
  x: XAxis;
  log: boolean;
  /** Weight of the past, 0 to 0.99. */
  smooth: number;
  pinned: ReadonlySet<number>;
}

/** One line's points in order of x. */
interface Track {
  x: number[];
  value: number[];
  min: number[];
  max: number[];
}

export function plotData(source: PlotSource, options: PlotOptions): PlotData {
  const drafts = source.bands.length > 0 ? bandDrafts(source, options) : rankDrafts(source, options);
  const kept = drafts.filter(({ track }) => track.x.length > 0);
  const tracks = kept.slice(0, MAX_LINES).map(({ track }) => track);
  const x = unionOf(tracks);
  const lines = kept.slice(0, MAX_LINES).map((draft) => lineOf(x, draft, options.smooth));
  const notPositive = options.log && dropNotPositive(lines);
  const counted = source.bands.at(-1)?.newest("count") ?? null;
  return {
    metric: source.metric,
    x,
    lines,
    ranks: counted ?? kept.length,
    notFinite: kept.flatMap(({ rank, track }) =>
      rank === null || Number.isFinite(track.value.at(-1)) ? [] : [rank],
    ),
    notPositive,
    left: kept.length - lines.length,
  };
}

/** Whether some value of a metric has an epoch, so that it can be the x axis. */
export function hasEpoch({ series, bands }: PlotSource): boolean {
  const known = (table: Series | Band): boolean => table.column("epoch").some(Number.isFinite);
  return bands.some(known) || [...series.values()].some((attempts) => attempts.some(known));
}

type Draft = Pick<PlotLine, "key" | "label" | "kind" | "rank" | "pinned"> & {
  track: Track;
  banded: boolean;
};

function rankDrafts({ series }: PlotSource, { x, pinned }: PlotOptions): Draft[] {
  const banded = series.size <= MAX_BANDED;
  return [...series]
    .sort(([a], [b]) => a - b)
    .map(([rank, attempts]) => rankDraft(rank, attempts, x, pinned, banded));
}

function rankDraft(
  rank: number,
  attempts: readonly Series[],
  x: XAxis,
  pinned: ReadonlySet<number>,
  banded: boolean,
): Draft {
  const track = join(attempts, (one) => [
    one.column(x),
    one.column("last"),
    one.column("min"),
    one.column("max"),
  ]);
  const spread = banded && track.value.some((_, i) => track.min[i] !== track.max[i]);
  return {
    key: `rank-${rank}`,
    label: `rank ${rank}`,
    kind: "rank",
    rank,
    pinned: pinned.has(rank),
    track,
    banded: spread,
  };
}

function bandDrafts({ series, bands, worst }: PlotSource, { x, pinned }: PlotOptions): Draft[] {
  const median: Draft = {
    key: "median",
    label: "median, min to max",
    kind: "median",
    rank: null,
    pinned: false,
    track: join(bands, (one) => [
      one.column(x),
      one.column("median"),
      one.column("min"),
      one.column("max"),
    ]),
    banded: true,
  };
  const own = [...series]
    .filter(([rank]) => rank === worst || pinned.has(rank))
    .sort(([a], [b]) => a - b)
    .map(([rank, attempts]): Draft => {
      const draft = rankDraft(rank, attempts, x, pinned, false);
      if (rank !== worst) return draft;
      return { ...draft, key: "worst", label: `worst: rank ${rank}`, kind: "worst" };
    });
  return [median, ...own];
}

/**
 * Joins attempts. One that resumed from a checkpoint repeats steps: its values
 * replace the ones of the attempt before.
 */
function join<T>(
  attempts: readonly T[],
  columns: (attempt: T) => [x: Float64Array, value: Float64Array, min: Float64Array, max: Float64Array],
): Track {
  const track: Track = { x: [], value: [], min: [], max: [] };
  for (const attempt of attempts) {
    const [xs, value, min, max] = columns(attempt);
    const first = xs.find(Number.isFinite);
    if (first === undefined) continue;
    let keep = track.x.length;
    while (keep > 0 && (track.x[keep - 1] ?? 0) >= first) keep--;
    for (const column of Object.values(track)) column.length = keep;
    for (let i = 0; i < xs.length; i++) {
      const x = xs[i] ?? Number.NaN;
      const before = track.x[track.x.length - 1] ?? Number.NEGATIVE_INFINITY;
      // A chart needs rising x. The same x again is a correction; one that
      // went back, or is no number at all, has no place on the axis.
      if (!Number.isFinite(x) || x < before) continue;
      const at = x === before ? track.x.length - 1 : track.x.length;
      track.x[at] = x;
      track.value[at] = value[i] ?? Number.NaN;
      track.min[at] = min[i] ?? Number.NaN;
      track.max[at] = max[i] ?? Number.NaN;
    }
  }
  return track;
}

function lineOf(x: number[], { track, banded, ...about }: Draft, smooth: number): PlotLine {
  const raw = spreadOver(x, track.x, track.value);
  const odd = new Map<number, number>();
  for (let i = 0, t = 0; i < x.length && t < track.x.length; i++) {
    if (x[i] !== track.x[t]) continue;
    const value = track.value[t++] ?? Number.NaN;
    if (!Number.isFinite(value)) odd.set(i, value);
  }
  return {
    ...about,
    values: smooth > 0 ? spreadOver(x, track.x, smoothed(track.value, smooth)) : raw,
    raw: smooth > 0 ? raw : null,
    band: banded
      ? [spreadOver(x, track.x, track.min), spreadOver(x, track.x, track.max)]
      : null,
    odd,
    newest: track.value.at(-1) ?? null,
  };
}

/**
 * The exponential moving average, without the pull of its start towards 0.
 * Gaps stay gaps and leave the average as it was.
 */
export function smoothed(values: readonly number[], weight: number): number[] {
  let [sum, mass] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}

const LOW_IS_GOOD = new Set(["loss", "error", "err", "perplexity", "wer"]);
const HIGH_IS_GOOD = new Set(
  ["acc", "accuracy", "f1", "auc", "precision", "recall", "bleu", "score", "map", "iou"],
);

/** Which end of a metric is the bad one, by its name; null where that tells nothing. */
export function badEnd(metric: string): "high" | "low" | null {
  // "valLoss" is two words, "mAP" is one.
  const words = `${metric} ${metric.replace(/([a-z])([A-Z])/g, "$1 $2")}`
    .toLowerCase()
    .split(/[^a-z0-9]+/);
  if (words.some((word) => LOW_IS_GOOD.has(word))) return "high";
  return words.some((word) => HIGH_IS_GOOD.has(word)) ? "low" : null;
}

/** Sorts values the worst first: what is no number, then by the metric's bad end. */
export function worstFirst<T>(metric: string, items: readonly T[], valueOf: (item: T) => number): T[] {
  const finite = items.map(valueOf).filter(Number.isFinite).sort((a, b) => a - b);
  const median = finite[finite.length >> 1] ?? 0;
  const end = badEnd(metric);
  const badness = (value: number): number => {
    if (!Number.isFinite(value)) return Number.POSITIVE_INFINITY;
    return end === "high" ? value : end === "low" ? -value : Math.abs(value - median);
  };
  // Equal ones, two infinities too, stay in their order.
  return [...items].sort((a, b) => {
    const [left, right] = [badness(valueOf(a)), badness(valueOf(b))];
    return left === right ? 0 : right - left;
  });
}

function unionOf(tracks: Track[]): number[] {
  const first = tracks[0];
  if (first === undefined) return [];
  // Ranks in lockstep share their steps: then nothing needs sorting.
  const shared = tracks.every(
    (track) =>
      track.x.length === first.x.length && track.x.every((value, i) => value === first.x[i]),
  );
  if (shared) return [...first.x];
  const all = Float64Array.from(tracks.flatMap((track) => track.x)).sort();
  return [...all.filter((value, i) => i === 0 || value !== all[i - 1])];
}

function spreadOver(x: number[], xs: number[], values: number[]): Column {
  const column: Column = [];
  let i = 0;
  for (const at of x) {
    if (i < xs.length && xs[i] === at) column.push(orGap(values[i++]));
    else column.push(undefined);
  }
  return column;
}

function orGap(value: number | undefined): number | null {
  return value !== undefined && Number.isFinite(value) ? value : null;
}

function dropNotPositive(lines: PlotLine[]): boolean {
  let dropped = false;
  for (const line of lines) {
    for (const column of new Set([line.values, line.raw ?? [], ...(line.band ?? [])])) {
      column.forEach((value, i) => {
        if (typeof value === "number" && value <= 0) {
          column[i] = null;
          dropped = true;
        }
      });
    }
  }
  return dropped;
}
