/**
 * From series to what a chart draws: aligned columns, no DOM, no chart library.
 *
 * Up to MAX_LINES ranks there is a line a rank. Past that the ranks become a
 * median, a band from the smallest to the largest value and the worst rank;
 * pinned ranks keep their own lines.
 */
import type { Series } from "./series";

export const MAX_LINES = 16;
/** Up to this many ranks each line also shows its buckets' min to max. */
const MAX_BANDED = 4;
/** Points of an aggregate: more than a notebook's width can show. */
const MAX_GRID = 600;

export type XAxis = "step" | "epoch" | "time";
/** null: a gap (the value is NaN). undefined: no value at this x. */
export type Column = (number | null | undefined)[];

export interface PlotLine {
  key: string;
  label: string;
  kind: "rank" | "median" | "worst";
  rank: number | null;
  values: Column;
  /** From and to of the band around the line. */
  band: [lo: Column, hi: Column] | null;
}

export interface PlotData {
  x: number[];
  lines: PlotLine[];
  aggregated: boolean;
  ranks: number[];
  /** Ranks whose newest value is not finite. */
  notFinite: number[];
  /** Whether values had to be left out since a logarithm has none for them. */
  notPositive: boolean;
}

export interface PlotOptions {
  metric: string;
  x: XAxis;
  log: boolean;
  pinned: ReadonlySet<number>;
}

/** One rank's points in order of x. */
interface Track {
  rank: number;
  x: number[];
  last: number[];
  min: number[];
  max: number[];
}

export function plotData(byRank: ReadonlyMap<number, Series[]>, options: PlotOptions): PlotData {
  const tracks = [...byRank]
    .sort(([a], [b]) => a - b)
    .map(([rank, attempts]) => trackOf(rank, attempts, options.x))
    .filter((track) => track.x.length > 0);
  const aggregated = tracks.length > MAX_LINES;
  const { x, lines } = aggregated
    ? aggregate(tracks, options)
    : lineEach(tracks, tracks.length <= MAX_BANDED);
  const notPositive = options.log && dropNotPositive(lines);
  return {
    x,
    lines,
    aggregated,
    ranks: tracks.map((track) => track.rank),
    notFinite: tracks
      .filter((track) => !Number.isFinite(track.last.at(-1)))
      .map((track) => track.rank),
    notPositive,
  };
}

/**
 * Joins the attempts of a rank. An attempt that resumed from a checkpoint
 * repeats steps: its values replace the ones of the attempt before.
 */
function trackOf(rank: number, attempts: readonly Series[], xAxis: XAxis): Track {
  const track: Track = { rank, x: [], last: [], min: [], max: [] };
  for (const series of attempts) {
    if (series.length === 0) continue;
    const xs = series.column(xAxis);
    const first = xs[0] ?? 0;
    let keep = track.x.length;
    while (keep > 0 && (track.x[keep - 1] ?? 0) >= first) keep--;
    for (const column of [track.x, track.last, track.min, track.max]) column.length = keep;
    const [last, min, max] = [series.column("last"), series.column("min"), series.column("max")];
    for (let i = 0; i < xs.length; i++) {
      const x = xs[i] ?? Number.NaN;
      const before = track.x.at(-1) ?? Number.NEGATIVE_INFINITY;
      // A chart needs rising x. The same step again is a correction; a step
      // that went back, or no number at all, has no place on the axis.
      if (!Number.isFinite(x) || x < before) continue;
      const at = x === before ? track.x.length - 1 : track.x.length;
      track.x[at] = x;
      track.last[at] = last[i] ?? Number.NaN;
      track.min[at] = min[i] ?? Number.NaN;
      track.max[at] = max[i] ?? Number.NaN;
    }
  }
  return track;
}

function lineEach(tracks: Track[], banded: boolean): { x: number[]; lines: PlotLine[] } {
  const x = unionOf(tracks);
  const lines = tracks.map((track): PlotLine => {
    const spread = banded && track.last.some((_, i) => track.min[i] !== track.max[i]);
    return {
      key: `rank-${track.rank}`,
      label: `rank ${track.rank}`,
      kind: "rank",
      rank: track.rank,
      values: spreadOver(x, track.x, track.last),
      band: spread
        ? [spreadOver(x, track.x, track.min), spreadOver(x, track.x, track.max)]
        : null,
    };
  });
  return { x, lines };
}

function aggregate(
  tracks: Track[],
  { metric, pinned }: PlotOptions,
): { x: number[]; lines: PlotLine[] } {
  const x = thin(unionOf(tracks), MAX_GRID);
  const [median, lo, hi]: [Column, Column, Column] = [[], [], []];
  const next = new Int32Array(tracks.length);
  const values = new Float64Array(tracks.length);
  for (const at of x) {
    let [count, low, high] = [0, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    tracks.forEach((track, t) => {
      // All buckets up to here count for the band, the newest for the median.
      let i = next[t] ?? 0;
      if (i > 0) i--;
      for (; i < track.x.length && (track.x[i] ?? 0) <= at; i++) {
        low = Math.min(low, finiteOr(track.min[i], low));
        high = Math.max(high, finiteOr(track.max[i], high));
      }
      next[t] = i;
      const last = track.last[i - 1];
      if (last !== undefined && Number.isFinite(last)) values[count++] = last;
    });
    median.push(count === 0 ? null : medianOf(values.subarray(0, count)));
    lo.push(Number.isFinite(low) ? low : null);
    hi.push(Number.isFinite(high) ? high : null);
  }
  const lines: PlotLine[] = [
    {
      key: "median",
      label: `median of ${tracks.length} ranks, min to max`,
      kind: "median",
      rank: null,
      values: median,
      band: [lo, hi],
    },
  ];
  const single = (track: Track, kind: "rank" | "worst", label: string): PlotLine => ({
    key: kind === "worst" ? "worst" : `rank-${track.rank}`,
    label,
    kind,
    rank: track.rank,
    values: sampleAt(x, track),
    band: null,
  });
  const worst = worstOf(tracks, metric);
  if (worst !== null) {
    lines.push(single(worst.track, "worst", `${worst.why}: rank ${worst.track.rank}`));
  }
  for (const track of tracks) {
    if (pinned.has(track.rank)) lines.push(single(track, "rank", `rank ${track.rank}`));
  }
  return { x, lines };
}

/** Metrics of which more is worse, and of which less is. */
const LOW_IS_GOOD = /loss|err|perplexity|ppl|mse|mae|wait|latency|seconds|_time|_ms$/i;
const HIGH_IS_GOOD = /acc|f1|auc|precision|recall|bleu|rouge|iou|reward|throughput|per_s/i;

/**
 * The rank to look at first: one whose newest value is not a number, else the
 * worst where the metric's name says which way is bad, else the one farthest
 * from the median, since being unlike the others is odd for any metric.
 */
function worstOf(tracks: Track[], metric: string): { track: Track; why: string } | null {
  const newest = tracks.map((track) => track.last.at(-1) ?? Number.NaN);
  const broken = tracks[newest.findIndex((value) => !Number.isFinite(value))];
  if (broken !== undefined) return { track: broken, why: "not a number" };
  const median = medianOf(Float64Array.from(newest));
  const high = LOW_IS_GOOD.test(metric);
  const low = !high && HIGH_IS_GOOD.test(metric);
  const badness = newest.map((value) =>
    high ? value : low ? -value : Math.abs(value - median),
  );
  const track = tracks[badness.indexOf(Math.max(...badness))];
  return track === undefined
    ? null
    : { track, why: high || low ? "worst" : "farthest from the median" };
}

/** Sorts in place. */
function medianOf(values: Float64Array): number {
  values.sort();
  const half = values.length >> 1;
  const upper = values[half] ?? Number.NaN;
  return values.length % 2 === 1 ? upper : ((values[half - 1] ?? upper) + upper) / 2;
}

function finiteOr(value: number | undefined, otherwise: number): number {
  return value !== undefined && Number.isFinite(value) ? value : otherwise;
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

function thin(x: number[], count: number): number[] {
  if (x.length <= count) return x;
  const stride = (x.length - 1) / (count - 1);
  return Array.from({ length: count }, (_, i) => x[Math.round(i * stride)] ?? 0);
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

/** The track's newest value at or before each x. */
function sampleAt(x: number[], track: Track): Column {
  let i = 0;
  return x.map((at) => {
    while (i < track.x.length && (track.x[i] ?? 0) <= at) i++;
    return i === 0 ? undefined : orGap(track.last[i - 1]);
  });
}

function orGap(value: number | undefined): number | null {
  return value !== undefined && Number.isFinite(value) ? value : null;
}

function dropNotPositive(lines: PlotLine[]): boolean {
  let dropped = false;
  for (const line of lines) {
    for (const column of [line.values, ...(line.band ?? [])]) {
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
