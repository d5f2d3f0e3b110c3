/** Scales of an axis: from a value to a place between 0 and 1, and back; no DOM. */
import { formatTick } from "./format";

export interface Tick {
  /** From 0 to 1. */
  at: number;
  label: string;
}

export interface Scale {
  kind: "linear" | "log" | "category";
  low: number;
  high: number;
  /** From 0 (low) to 1 (high); past them where the value is, NaN where a logarithm has none. */
  place(value: number): number;
  value(place: number): number;
  /** About `most` ticks, of whole numbers where `whole` says so. */
  ticks(most: number): Tick[];
}

export type Format = (value: number) => string;

export function linearScale(low: number, high: number, format: Format = formatTick, whole = false): Scale {
  const [from, to] = low < high ? [low, high] : around(low, whole);
  return {
    kind: "linear",
    low: from,
    high: to,
    place: (value) => (value - from) / (to - from),
    value: (place) => from + place * (to - from),
    ticks(most) {
      const step = niceStep((to - from) / Math.max(1, most), whole);
      const ticks: Tick[] = [];
      for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) {
        // Counted and not added up, so that 0.1 + 0.2 reads 0.3.
        const value = Number((i * step).toPrecision(12));
        ticks.push({ at: (value - from) / (to - from), label: format(value) });
      }
      return ticks;
    },
  };
}

/** Needs positive bounds. */
export function logScale(low: number, high: number, format: Format = formatTick): Scale {
  const [from, to] = low < high ? [low, high] : [low / 2, low * 2];
  const [a, b] = [Math.log(from), Math.log(to)];
  const place = (value: number): number => (value > 0 ? (Math.log(value) - a) / (b - a) : Number.NaN);
  return {
    kind: "log",
    low: from,
    high: to,
    place,
    value: (at) => Math.exp(a + at * (b - a)),
    ticks(most) {
      const decades = (b - a) / Math.LN10;
      const digits = decades * 3 <= most ? [1, 2, 5] : decades <= most ? [1] : null;
      const every = digits === null ? Math.ceil(decades / Math.max(1, most)) : 1;
      const ticks: Tick[] = [];
      for (let power = Math.floor(a / Math.LN10); power <= Math.ceil(b / Math.LN10); power++) {
        if (power % every !== 0) continue;
        for (const digit of digits ?? [1]) {
          const value = Number(`${digit}e${power}`);
          const at = place(value);
          if (at >= -1e-6 && at <= 1 + 1e-6) ticks.push({ at, label: format(value) });
        }
      }
      return ticks.length > 1 ? ticks : [{ at: 0, label: format(from) }, { at: 1, label: format(to) }];
    },
  };
}

/** Categories by index, with half a step of room at both ends. */
export function categoryScale(labels: readonly string[]): Scale {
  const count = Math.max(1, labels.length);
  const place = (index: number): number => (index + 0.5) / count;
  return {
    kind: "category",
    low: 0,
    high: count - 1,
    place,
    value: (at) => at * count - 0.5,
    ticks: () => labels.map((label, i) => ({ at: place(i), label })),
  };
}

export interface Extent {
  low: number;
  high: number;
  /** How many values are outside, since they would flatten all others. */
  outside: number;
}

/** Values further out than this many times the middle's spread are left outside. */
const FAR = 6;
/** With fewer values nobody can tell what is far out. */
const ENOUGH = 8;

/** From where to where the values go; a few that are far out don't count. Null where there is none. */
export function extentOf(values: Iterable<number>): Extent | null {
  const sorted = Float64Array.from([...values].filter(Number.isFinite)).sort();
  const count = sorted.length;
  const [low, high] = [sorted[0], sorted[count - 1]];
  if (low === undefined || high === undefined) return null;
  if (count < ENOUGH) return { low, high, outside: 0 };
  const at = (share: number): number => sorted[Math.round(share * (count - 1))] ?? low;
  const spread = at(0.9) - at(0.1);
  const [least, most] = [at(0.1) - FAR * spread, at(0.9) + FAR * spread];
  const inside = spread > 0 ? sorted.filter((value) => value >= least && value <= most) : sorted;
  return { low: inside[0] ?? low, high: inside[inside.length - 1] ?? high, outside: count - inside.length };
}

/** The next number of 1, 2, 5 times a power of ten that is no smaller. */
export function niceStep(rough: number, whole = false): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((digit) => digit * power >= rough * (1 - 1e-9)) ?? 10;
  const nice = Number((step * power).toPrecision(12));
  return whole ? Math.max(1, nice) : nice;
}

function around(value: number, whole: boolean): [number, number] {
  const room = whole ? 1 : Math.abs(value) * 0.1 || 1;
  return [value - room, value + room];
}
