/**
 * The axes of a search: a parameter each, and the metric that is tuned.
 *
 * A trial has a coordinate on an axis: its value, or the index of its category.
 */
import { formatTick, formatValue, UNKNOWN } from "./format";
import { categoryScale, extentOf, linearScale, logScale, type Scale } from "./scales";
import type { Param, Search, Trial, Value } from "./search_wire";

export interface TrialAxis {
  key: string;
  label: string;
  /** More about it, for who points at its name. */
  title: string;
  scale: Scale;
  /** Whether it is the metric. */
  goal: boolean;
  /** Null where the trial has no value here, or one that the axis has no place for. */
  coordinate(trial: Trial): number | null;
  /** A coordinate as a person reads it. */
  text(coordinate: number): string;
}

/** The axis of the metric; no parameter has this key. */
export const GOAL = "\u0000metric";
/** A parameter with more different texts than this is no axis. */
const MAX_CATEGORIES = 40;
/** Positive values that span more than this read better on a logarithmic axis. */
const LOG_FROM = 50;

/** Parameters that differ between trials, in the order they were given. */
export function paramAxes(search: Search, trials: readonly Trial[]): TrialAxis[] {
  return search.params.flatMap((param) => (param.kind === "fixed" ? [] : (paramAxis(param, trials) ?? [])));
}

/** The best value of each trial; null before there is one. */
export function goalAxis(search: Search, trials: readonly Trial[]): TrialAxis | null {
  const extent = extentOf(trials.flatMap(({ best }) => best ?? []));
  if (extent === null || search.metric === null) return null;
  return {
    key: GOAL,
    label: search.metric,
    title: `best ${search.metric} of each trial${search.mode === null ? "" : `; ${search.mode === "min" ? "lower" : "higher"} is better`}`,
    scale: spanning(extent.low, extent.high),
    goal: true,
    coordinate: ({ best }) => best,
    text: formatValue,
  };
}

export function valueText(value: Value | undefined): string {
  if (value === undefined) return UNKNOWN;
  if (value === null) return "None";
  return typeof value === "number" ? formatValue(value) : String(value);
}

function paramAxis(param: Param, trials: readonly Trial[]): TrialAxis | null {
  const { name, text, kind } = param;
  const base = { key: name, label: name, title: text === "" ? name : `${name}: ${text}`, goal: false };
  const seen = trials.map(({ config }) => config.get(name));
  const numbers = seen.filter((value): value is number => typeof value === "number");
  const numeric = kind === "float" || kind === "int" || (kind === "other" && isNumeric(seen));
  if (numeric) {
    // A scheduler that mutates leaves the domain: values seen count too.
    const known = [param.low, param.high, ...numbers].filter((value) => value !== null);
    const extent = kind === "other" ? extentOf(numbers) : { low: Math.min(...known), high: Math.max(...known) };
    if (extent === null || !Number.isFinite(extent.low)) return null;
    const { low, high } = extent;
    const whole = kind === "int";
    const scale =
      param.log && low > 0
        ? logScale(low, high)
        : kind === "other"
          ? spanning(low, high)
          : linearScale(low, high, formatTick, whole);
    return {
      ...base,
      scale,
      coordinate: ({ config }) => numberOf(config.get(name)),
      text: formatValue,
    };
  }
  const categories = categoriesOf(param.choices ?? [], seen);
  if (categories.length === 0 || categories.length > MAX_CATEGORIES) return null;
  const places = new Map(categories.map((category, i) => [category, i]));
  return {
    ...base,
    scale: categoryScale(categories),
    coordinate({ config }) {
      const value = config.get(name);
      return value === undefined ? null : (places.get(valueText(value)) ?? null);
    },
    text: (coordinate) => categories[Math.round(coordinate)] ?? UNKNOWN,
  };
}

function isNumeric(values: readonly (Value | undefined)[]): boolean {
  return values.some((value) => typeof value === "number") && !values.some((value) => typeof value === "string");
}

function numberOf(value: Value | undefined): number | null {
  return typeof value === "number" ? value : null;
}

/** Numbers in their order, whatever the choices' order is; then the rest as given. */
function categoriesOf(choices: readonly Value[], seen: readonly (Value | undefined)[]): string[] {
  const all = new Set<Value>([...choices, ...seen.filter((value): value is Value => value !== undefined)]);
  const numbers = [...all].filter((value) => typeof value === "number").sort((a, b) => a - b);
  const rest = [...all].filter((value) => typeof value !== "number");
  return [...new Set([...numbers, ...rest].map(valueText))];
}

function spanning(low: number, high: number): Scale {
  if (low > 0 && high / low > LOG_FROM) return logScale(low, high);
  return linearScale(low, high);
}
