/** The words of a search on the wire: what `run` and `trials` hold besides a run's own. */
import type { RunError } from "./wire";

/** Bounds of one message; what is past them is left out. */
export const SEARCH_LIMITS = {
  trials: 10_000,
  params: 200,
  choices: 200,
  metrics: 300,
  resources: 50,
  /** Characters of a parameter's value, and of its name. */
  value: 300,
} as const;

/** In the order of a trial's life. */
export const TRIAL_STATES = [
  "pending",
  "running",
  "paused",
  "finished",
  "pruned",
  "stopped",
  "failed",
] as const;
export type TrialState = (typeof TRIAL_STATES)[number] | "unknown";

/** A parameter's value: of kinds that JSON has not, its text. */
export type Value = number | string | boolean | null;

/** Where a parameter is drawn from. */
export interface Param {
  name: string;
  kind: "float" | "int" | "choice" | "fixed" | "other";
  log: boolean;
  low: number | null;
  high: number | null;
  choices: Value[] | null;
  /** The domain as a person writes it. */
  text: string;
}

export interface BestTrial {
  trial: number;
  value: number;
  step: number | null;
  config: Map<string, Value>;
}

export interface Resource {
  used: number | null;
  total: number | null;
}

export interface Search {
  metric: string | null;
  mode: "min" | "max" | null;
  /** Trials in all, where that is known. */
  planned: number | null;
  scheduler: string | null;
  search: string | null;
  max_concurrent: string | null;
  time_budget_s: number | null;
  /** The rule that ends a trial, as text. */
  stop: string | null;
  /** Ranks of a trial. */
  workers: number;
  params: Param[];
  /** The tuned one first. */
  metrics: string[];
  counts: Map<TrialState, number>;
  best: BestTrial | null;
  /** Ray's logical resources. */
  cluster: Map<string, Resource>;
}

export interface Trial {
  /** Its index, from 0. */
  trial: number;
  id: string | null;
  state: TrialState;
  /** Why it ended or what it waits for. */
  reason: string | null;
  reason_kind: string | null;
  error: RunError | null;
  config: Map<string, Value>;
  iterations: number | null;
  /** Of the metric that is tuned: the last value, the best one, and when that was. */
  latest: number | null;
  best: number | null;
  best_step: number | null;
  /** The last value of every metric. */
  last: Map<string, number>;
  time_s: number | null;
  started: number | null;
  ended: number | null;
  last_report: number | null;
  /** Results with a checkpoint so far. */
  checkpoint: number | null;
  restarts: number | null;
  node: string | null;
  pid: number | null;
}

/** A row of a delta: the trial and what changed. */
export type TrialPatch = Pick<Trial, "trial"> & Partial<Trial>;
