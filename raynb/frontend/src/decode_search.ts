/** Decodes what a message says of a search; trusts as little as `decode.ts`. */
import { asFields, describe, integer, number, oneOf, text, type Fields, type Problems } from "./read";
import {
  SEARCH_LIMITS as LIMITS,
  TRIAL_STATES,
  type BestTrial,
  type Param,
  type Resource,
  type Search,
  type Trial,
  type TrialPatch,
  type TrialState,
  type Value,
} from "./search_wire";
import { LIMITS as RUN_LIMITS, type RunError } from "./wire";

/** Null where the run is no search. */
export function decodeSearch(f: Fields): Search | null {
  if (f["kind"] !== "tune") return null;
  const counts = new Map<TrialState, number>();
  for (const state of TRIAL_STATES) counts.set(state, number(asFields(f["counts"])?.[state]) ?? 0);
  const cluster = entriesOf(f["cluster"], LIMITS.resources, (value): Resource | undefined => {
    const resource = asFields(value);
    return resource === null ? undefined : { used: number(resource["used"]), total: number(resource["total"]) };
  });
  return {
    metric: text(f["metric"], LIMITS.value),
    mode: oneOf(["min", "max"] as const, f["mode"]),
    planned: integer(f["planned"]),
    scheduler: words(f["scheduler"]),
    search: words(f["search"]),
    max_concurrent: words(f["max_concurrent"]),
    time_budget_s: number(f["time_budget_s"]),
    stop: words(f["stop"]),
    workers: Math.max(1, integer(f["workers"]) ?? 1),
    params: listOf(f["params"], LIMITS.params, decodeParam),
    metrics: listOf(f["metrics"], LIMITS.metrics, (name) => text(name, LIMITS.value)),
    counts,
    best: decodeBest(f["best_trial"]),
    cluster,
  };
}

function decodeParam(value: unknown): Param | null {
  const f = asFields(value);
  const name = text(f?.["name"], LIMITS.value);
  if (f === null || name === null) return null;
  return {
    name,
    kind: oneOf(["float", "int", "choice", "fixed"] as const, f["kind"]) ?? "other",
    log: f["log"] === true,
    low: number(f["low"]),
    high: number(f["high"]),
    choices: Array.isArray(f["choices"]) ? f["choices"].slice(0, LIMITS.choices).map((one) => valueOf(one) ?? null) : null,
    text: text(f["text"], LIMITS.value) ?? "",
  };
}

function decodeBest(value: unknown): BestTrial | null {
  const f = asFields(value);
  const trial = integer(f?.["trial"]);
  const best = number(f?.["value"]);
  if (f === null || trial === null || best === null) return null;
  return { trial, value: best, step: number(f["step"]), config: configOf(f["config"]) };
}

/** How each field of a trial's row is read. */
const TRIAL_FIELDS: { [K in keyof Omit<Trial, "trial">]: (value: unknown) => Trial[K] } = {
  id: text,
  state: (value) => oneOf(TRIAL_STATES, value) ?? "unknown",
  reason: text,
  reason_kind: text,
  error: decodeError,
  config: configOf,
  iterations: number,
  latest: number,
  best: number,
  best_step: number,
  last: (value) => entriesOf(value, LIMITS.metrics, (one) => number(one) ?? undefined),
  time_s: number,
  started: number,
  ended: number,
  last_report: number,
  checkpoint: number,
  restarts: number,
  node: text,
  pid: integer,
};

/** A trial of which nothing is known yet. */
export function unknownTrial(trial: number): Trial {
  const fields = Object.entries(TRIAL_FIELDS).map(([name, read]) => [name, read(null)] as const);
  return { ...(Object.fromEntries(fields) as unknown as Omit<Trial, "trial">), trial };
}

export function decodeTrial(f: Fields, problems: Problems): TrialPatch | null {
  const trial = integer(f["trial"]);
  if (trial === null || trial < 0) return null;
  const patch: Fields = { trial };
  for (const [name, read] of Object.entries(TRIAL_FIELDS)) {
    if (f[name] !== undefined) patch[name] = read(f[name]);
  }
  if (patch["state"] === "unknown") {
    problems.add(`unknown state of trial ${trial}: ${describe(f["state"])}`);
  }
  return patch as unknown as TrialPatch;
}

/** What ended a run or a trial. */
export function decodeError(value: unknown): RunError | null {
  const f = asFields(value);
  if (f === null) return null;
  return {
    title: text(f["title"]) ?? "The run failed",
    rank: integer(f["rank"]),
    text: text(f["text"], RUN_LIMITS.errorText) ?? "",
    line: text(f["line"]),
  };
}

function configOf(value: unknown): Map<string, Value> {
  return entriesOf(value, LIMITS.params, valueOf);
}

/** What an object says by name, where it can be read. */
function entriesOf<T>(value: unknown, limit: number, read: (one: unknown) => T | undefined): Map<string, T> {
  const found = new Map<string, T>();
  for (const [name, one] of Object.entries(asFields(value) ?? {}).slice(0, limit)) {
    const known = read(one);
    if (known !== undefined) found.set(name.slice(0, LIMITS.value), known);
  }
  return found;
}

function listOf<T>(value: unknown, limit: number, read: (one: unknown) => T | null): T[] {
  if (!Array.isArray(value)) return [];
  return value.slice(0, limit).flatMap((one) => read(one) ?? []);
}

/** Python's None is null. */
function valueOf(value: unknown): Value | undefined {
  if (typeof value === "boolean" || value === null) return value;
  return number(value) ?? text(value, LIMITS.value) ?? undefined;
}

function words(value: unknown): string | null {
  return typeof value === "number" ? String(value) : text(value, LIMITS.value);
}
