/**
 * The wire schema between kernel and browser, version 2: the words, not the checks.
 *
 * Twin of `raynb/panel/wire.py`: a change here is a change there, and of the
 * golden messages in `tests/golden`. Unknown is null; times are UNIX seconds,
 * rates a second, shares 0 to 1, percents 0 to 100. `decode.ts` checks what comes.
 */

import type { Search, TrialPatch } from "./search_wire";

export const WIRE_VERSION = 2;

/** Bounds of one message; what is past them is left out and reported. */
export const LIMITS = {
  text: 4_000,
  errorText: 200_000,
  workers: 4_096,
  series: 50_000,
  buckets: 100_000,
  logs: 20_000,
  events: 2_000,
  problems: 20,
  /** Hints, and ranks named by one of them. */
  hints: 50,
  hintRanks: 4_096,
  shards: 8,
  focus: 1_000,
  fileName: 100,
} as const;

/** Ranks that can be pinned at a time. */
export const MAX_PINNED = 16;

export const RUN_STATES = [
  "preflight",
  "starting_ray",
  "waiting",
  "starting_workers",
  "training",
  "searching",
  "finishing",
  "finished",
  "failed",
  "stopping",
  "stopped",
  "restarting",
] as const;
export type RunState = (typeof RUN_STATES)[number] | "unknown";

export const WORKER_STATUSES = [
  "starting",
  "running",
  "waiting",
  "finished",
  "failed",
  "stopped",
] as const;
export type WorkerStatus = (typeof WORKER_STATUSES)[number] | "unknown";

export const EVENT_LEVELS = ["info", "warn", "error"] as const;
export type EventLevel = (typeof EVENT_LEVELS)[number];

export interface RunError {
  title: string;
  rank: number | null;
  text: string;
  /** The notebook's line that raised, as source text. */
  line: string | null;
}

export interface Best {
  metric: string;
  value: number;
  step: number | null;
  rank: number | null;
}

export interface Run {
  name: string;
  state: RunState;
  message: string;
  started: number | null;
  ended: number | null;
  /** The kernel's clock when it sent this. */
  now: number | null;
  world_size: number | null;
  storage: string | null;
  attempt: number;
  /** Whether a cell waits for this run, so that interrupting it stops the run. */
  blocking: boolean;
  stoppable: boolean;
  shard_totals: Record<string, number>;
  error: RunError | null;
  dropped: { metrics: number; samples: number; logs: number; series: number; refused: number };
  best: Best | null;
  /** Whether each rank has its series, or all share bands and a few stand out. */
  detail: "ranks" | "bands";
  /** Null where the run is no search. */
  search: Search | null;
}

/** One loader's share of the data on one rank. */
export interface Shard {
  name: string;
  kind: "map" | "iterable" | "ray" | null;
  rows_seen: number | null;
  rows_total: number | null;
  batches_seen: number | null;
  batches_total: number | null;
  batch_size: number | null;
  /** Rows a sampler leaves out, or repeats, to give every rank as many. */
  rows_dropped: number | null;
  rows_repeated: number | null;
  epoch: number | null;
  shuffle: boolean | null;
  set_epoch: "ok" | "missing" | null;
  eta_s: number | null;
}

export interface Worker {
  rank: number;
  attempt: number | null;
  node: string | null;
  ip: string | null;
  pid: number | null;
  status: WorkerStatus;
  /** Since when it is inside `ray.train.report()`. */
  waiting_since: number | null;
  device: string;
  device_kind: "CPU" | "GPU" | null;
  util: number | null;
  mem_used: number | null;
  mem_total: number | null;
  /** GPU memory of this worker's own processes. */
  mem_process: number | null;
  temperature: number | null;
  power: number | null;
  /** Whether util and memory are of a GPU that others use too. */
  device_wide: boolean;
  /** Why a value is unknown. */
  note: string | null;
  /** Percent of the worker's CPUs, its children included; `rss` likewise. */
  cpu: number | null;
  rss: number | null;
  threads: number | null;
  cores: number | null;
  /** The node's traffic, in bytes a second. */
  net_in: number | null;
  net_out: number | null;
  disk_read: number | null;
  disk_write: number | null;
  net_speed: number | null;
  step: number | null;
  rate: number | null;
  last_report: number | null;
  records: number | null;
  /** Calls of `ray.train.report()` begun in this attempt. */
  reports: number | null;
  /** Mean seconds a step: whole, waiting for data, in report(), waiting for peers. */
  step_s: number | null;
  wait_s: number | null;
  report_s: number | null;
  sync_s: number | null;
  rows_rate: number | null;
  /** Since when nothing moved, and the line where the train function stands. */
  still_since: number | null;
  where: string | null;
  lr: number | null;
  /** The one trained on first. */
  shards: Shard[];
}

/** A row of a delta: the rank and what changed. */
export type WorkerPatch = Pick<Worker, "rank"> & Partial<Worker>;

/** The rows of a series buffer, in wire order. */
export const ROWS = ["step", "time", "epoch", "last", "min", "max"] as const;
export type Row = (typeof ROWS)[number];

/** The rows of a band's buffer: values across ranks, and how many ranks. */
export const BAND_ROWS = ["step", "time", "epoch", "median", "min", "max", "count"] as const;
export type BandRow = (typeof BAND_ROWS)[number];

export interface BandPart {
  metric: string;
  attempt: number;
  /** The receiver keeps this many buckets; the new ones follow. */
  start: number;
  n: number;
  /** The rows of `n` numbers each, one after the other. */
  values: Float64Array;
}

export interface SeriesPart extends BandPart {
  rank: number;
}

/** The ranks that have series of their own beside the bands. */
export interface Focus {
  pinned: number[];
  /** By metric. */
  worst: Map<string, number>;
}

export const HINT_KINDS = [
  "data_bound",
  "straggler",
  "silent",
  "stalled",
  "imbalance",
  "set_epoch",
  "leak",
  "gpu_memory",
  "cuda_oom",
  "collective_timeout",
  "non_finite",
  "lr_scaling",
  "report_rate",
  "network",
  "threads",
] as const;
export type HintKind = (typeof HINT_KINDS)[number] | "other";

export interface Hint {
  id: string;
  kind: HintKind;
  level: EventLevel;
  title: string;
  ranks: number[];
  /** The numbers it rests on, and from which number on it is said. */
  evidence: string;
  threshold: string;
  /** What to do; code lines start with four spaces. */
  fix: string;
  since: number | null;
  /** Null while it is still true. */
  until: number | null;
}

export interface LogLine {
  /** In a search: the lane, which is a rank of a trial. */
  rank: number;
  seq: number;
  stream: "out" | "err";
  text: string;
}

export interface TimelineEvent {
  t: number | null;
  level: EventLevel;
  text: string;
}

export interface Update {
  kind: "snapshot" | "delta";
  seq: number;
  run: Run | null;
  workers: WorkerPatch[];
  trials: TrialPatch[];
  series: SeriesPart[];
  bands: BandPart[];
  /** Null: as it was. `hints` likewise. */
  focus: Focus | null;
  hints: Hint[] | null;
  logs: LogLine[];
  logs_dropped: Map<number, number>;
  events: TimelineEvent[];
}

/** What was asked for is done; of "end", which nobody asks for, the run is over. */
export interface Ack {
  kind: "ack";
  of: string;
  trial: number | null;
}

/** A rank's whole log, asked for by a download. */
export interface LogFile {
  kind: "file";
  rank: number;
  name: string;
  /** False when its beginning is missing; `note` says why. */
  whole: boolean;
  note: string | null;
  data: Uint8Array<ArrayBuffer>;
}

export type Message = Update | Ack | LogFile;

/** What the browser sends. */
export type Outgoing =
  | { kind: "hello" }
  | { kind: "keep" }
  | { kind: "stop" }
  | { kind: "stop_trial"; trial: number }
  | { kind: "pin"; ranks: number[] }
  | { kind: "download"; rank: number };
