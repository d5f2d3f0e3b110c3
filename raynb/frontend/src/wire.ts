/**
 * The wire schema between kernel and browser, version 1.
 *
 * Twin of `raynb/panel/wire.py`: a change here is a change there, and of the
 * golden messages in `tests/golden`. The decoder trusts nothing: fields it
 * does not know are ignored, values of a wrong shape become "unknown" and are
 * reported, and every list and text has a bound, so that no message can make
 * the panel blank or the page slow.
 */

export const WIRE_VERSION = 1;

/** Bounds of one message; what is past them is left out and reported. */
export const LIMITS = {
  text: 4_000,
  errorText: 200_000,
  workers: 4_096,
  series: 20_000,
  buckets: 100_000,
  logs: 20_000,
  events: 2_000,
  problems: 20,
} as const;

export const RUN_STATES = [
  "preflight",
  "starting_ray",
  "waiting",
  "starting_workers",
  "training",
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
  dropped: { metrics: number; samples: number; logs: number };
  best: Best | null;
}

export interface Shard {
  name: string;
  rows_seen: number | null;
  rows_total: number | null;
  batches_seen: number | null;
  batches_total: number | null;
  batch_size: number | null;
  epoch: number | null;
}

export interface Worker {
  rank: number;
  node: string | null;
  ip: string | null;
  pid: number | null;
  device: string;
  device_kind: "CPU" | "GPU" | null;
  util: number | null;
  mem_used: number | null;
  mem_total: number | null;
  /** Why a value is unknown. */
  note: string | null;
  step: number | null;
  rate: number | null;
  last_report: number | null;
  status: WorkerStatus;
  shard: Shard | null;
}

/** The rows of a series buffer, in wire order. */
export const ROWS = ["step", "time", "last", "min", "max"] as const;
export type Row = (typeof ROWS)[number];

export interface SeriesPart {
  metric: string;
  rank: number;
  attempt: number;
  /** The series keeps this many buckets; the new ones follow. */
  start: number;
  n: number;
  /** Five rows of `n` numbers, row-major, in the order of `ROWS`. */
  values: Float64Array;
}

export interface LogLine {
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
  workers: Worker[];
  series: SeriesPart[];
  logs: LogLine[];
  logs_dropped: Map<number, number>;
  events: TimelineEvent[];
}

export interface Ack {
  kind: "ack";
  of: string;
}

/** What the browser sends. */
export type Outgoing = { kind: "hello" } | { kind: "stop" };

export interface Decoded {
  /** Null when the message as a whole makes no sense; `problems` says why. */
  message: Update | Ack | null;
  problems: string[];
}

type Fields = Record<string, unknown>;

/** Collects what was wrong with a message, bounded. */
class Problems {
  readonly list: string[] = [];

  add(text: string): void {
    if (this.list.length < LIMITS.problems) this.list.push(text);
  }
}

export function decode(content: unknown, buffers: readonly unknown[] = []): Decoded {
  const problems = new Problems();
  return { message: decodeMessage(content, buffers, problems), problems: problems.list };
}

function decodeMessage(
  content: unknown,
  buffers: readonly unknown[],
  problems: Problems,
): Update | Ack | null {
  const fields = asFields(content);
  if (fields === null) {
    problems.add(`the kernel sent ${describe(content)} where a message belongs`);
    return null;
  }
  const kind = fields["kind"];
  if (kind === "ack") return { kind, of: text(fields["of"]) ?? "" };
  if (kind !== "snapshot" && kind !== "delta") {
    problems.add(`the kernel sent a message of an unknown kind: ${describe(kind)}`);
    return null;
  }
  if (fields["v"] !== WIRE_VERSION) {
    problems.add(
      `the kernel speaks version ${describe(fields["v"])} of the panel's language, ` +
        `this panel version ${WIRE_VERSION}: restart the kernel, then reload the page`,
    );
    return null;
  }
  const seq = integer(fields["seq"]);
  if (seq === null) problems.add(`a ${kind} has no valid "seq"`);
  const run = fields["run"] === undefined ? null : decodeRun(fields["run"], problems);
  if (kind === "snapshot" && fields["run"] === undefined) {
    problems.add('a snapshot has no "run"');
  }
  return {
    kind,
    seq: seq ?? 0,
    run,
    workers: items(fields, "workers", LIMITS.workers, problems, decodeWorker),
    series: items(fields, "series", LIMITS.series, problems, (item) =>
      decodeSeries(item, buffers, problems),
    ),
    logs: items(fields, "logs", LIMITS.logs, problems, decodeLog),
    logs_dropped: decodeDropped(fields["logs_dropped"]),
    events: items(fields, "events", LIMITS.events, problems, decodeEvent),
  };
}

/** Decodes a list item by item; what cannot be decoded is left out and said. */
function items<T>(
  fields: Fields,
  name: string,
  limit: number,
  problems: Problems,
  decodeOne: (item: Fields, problems: Problems) => T | null,
): T[] {
  const list = fields[name];
  if (list === undefined || list === null) return [];
  if (!Array.isArray(list)) {
    problems.add(`"${name}" should be a list, not ${describe(list)}`);
    return [];
  }
  if (list.length > limit) {
    problems.add(`"${name}" has ${list.length} entries; the last ${limit} are shown`);
  }
  const decoded: T[] = [];
  for (const item of list.slice(-limit)) {
    const itemFields = asFields(item);
    const one = itemFields === null ? null : decodeOne(itemFields, problems);
    if (one === null) problems.add(`an entry of "${name}" is not understood`);
    else decoded.push(one);
  }
  return decoded;
}

function decodeRun(value: unknown, problems: Problems): Run | null {
  const f = asFields(value);
  if (f === null) {
    problems.add(`"run" should be an object, not ${describe(value)}`);
    return null;
  }
  const state = oneOf(RUN_STATES, f["state"]);
  if (state === null) problems.add(`unknown run state: ${describe(f["state"])}`);
  const dropped = asFields(f["dropped"]) ?? {};
  const totals: Record<string, number> = Object.create(null) as Record<string, number>;
  for (const [name, rows] of Object.entries(asFields(f["shard_totals"]) ?? {}).slice(0, 100)) {
    const known = number(rows);
    if (known !== null) totals[name] = known;
  }
  return {
    name: text(f["name"]) ?? "run",
    state: state ?? "unknown",
    message: text(f["message"]) ?? "",
    started: number(f["started"]),
    ended: number(f["ended"]),
    now: number(f["now"]),
    world_size: integer(f["world_size"]),
    storage: text(f["storage"]),
    attempt: integer(f["attempt"]) ?? 0,
    blocking: f["blocking"] === true,
    stoppable: f["stoppable"] === true,
    shard_totals: totals,
    error: decodeError(f["error"]),
    dropped: {
      metrics: number(dropped["metrics"]) ?? 0,
      samples: number(dropped["samples"]) ?? 0,
      logs: number(dropped["logs"]) ?? 0,
    },
    best: decodeBest(f["best"]),
  };
}

function decodeError(value: unknown): RunError | null {
  const f = asFields(value);
  if (f === null) return null;
  return {
    title: text(f["title"]) ?? "The run failed",
    rank: integer(f["rank"]),
    text: text(f["text"], LIMITS.errorText) ?? "",
    line: text(f["line"]),
  };
}

function decodeBest(value: unknown): Best | null {
  const f = asFields(value);
  const metric = text(f?.["metric"]);
  const best = number(f?.["value"]);
  if (f === null || metric === null || best === null) return null;
  return { metric, value: best, step: number(f["step"]), rank: integer(f["rank"]) };
}

function decodeWorker(f: Fields, problems: Problems): Worker | null {
  const rank = integer(f["rank"]);
  if (rank === null || rank < 0) return null;
  const status = oneOf(WORKER_STATUSES, f["status"]);
  if (status === null) {
    problems.add(`unknown status of rank ${rank}: ${describe(f["status"])}`);
  }
  return {
    rank,
    node: text(f["node"]),
    ip: text(f["ip"]),
    pid: integer(f["pid"]),
    device: text(f["device"]) ?? "n/a",
    device_kind: oneOf(["CPU", "GPU"] as const, f["device_kind"]),
    util: number(f["util"]),
    mem_used: number(f["mem_used"]),
    mem_total: number(f["mem_total"]),
    note: text(f["note"]),
    step: number(f["step"]),
    rate: number(f["rate"]),
    last_report: number(f["last_report"]),
    status: status ?? "unknown",
    shard: decodeShard(f["shard"]),
  };
}

function decodeShard(value: unknown): Shard | null {
  const f = asFields(value);
  if (f === null) return null;
  return {
    name: text(f["name"]) ?? "shard",
    rows_seen: number(f["rows_seen"]),
    rows_total: number(f["rows_total"]),
    batches_seen: number(f["batches_seen"]),
    batches_total: number(f["batches_total"]),
    batch_size: number(f["batch_size"]),
    epoch: number(f["epoch"]),
  };
}

function decodeSeries(
  f: Fields,
  buffers: readonly unknown[],
  problems: Problems,
): SeriesPart | null {
  const metric = text(f["metric"]);
  const rank = integer(f["rank"]);
  const start = integer(f["start"]);
  const n = integer(f["n"]);
  const buf = integer(f["buf"]);
  if (metric === null || rank === null || rank < 0) return null;
  if (start === null || start < 0 || n === null || n < 0 || buf === null) return null;
  if (start + n > LIMITS.buckets) {
    problems.add(`the series ${describe(metric)} is too long to show`);
    return null;
  }
  const values = n === 0 ? new Float64Array(0) : float64(buffers[buf], ROWS.length * n);
  if (values === null) {
    problems.add(`buffer ${buf}, for ${describe(metric)}, is missing or too short`);
    return null;
  }
  return { metric, rank, attempt: integer(f["attempt"]) ?? 0, start, n, values };
}

function decodeLog(f: Fields): LogLine | null {
  const rank = integer(f["rank"]);
  const seq = integer(f["seq"]);
  const line = text(f["text"]);
  if (rank === null || seq === null || line === null) return null;
  return { rank, seq, stream: f["stream"] === "err" ? "err" : "out", text: line };
}

function decodeDropped(value: unknown): Map<number, number> {
  const dropped = new Map<number, number>();
  for (const [key, count] of Object.entries(asFields(value) ?? {}).slice(0, LIMITS.workers)) {
    const rank = integer(Number(key));
    const known = number(count);
    if (rank !== null && known !== null) dropped.set(rank, known);
  }
  return dropped;
}

function decodeEvent(f: Fields): TimelineEvent | null {
  const what = text(f["text"]);
  if (what === null) return null;
  return { t: number(f["t"]), level: oneOf(EVENT_LEVELS, f["level"]) ?? "info", text: what };
}

/**
 * Copies `count` little-endian doubles out of a buffer. Front ends hand over
 * DataViews at any offset, which a Float64Array cannot sit on: hence the copy.
 */
function float64(buffer: unknown, count: number): Float64Array | null {
  let view: DataView;
  if (ArrayBuffer.isView(buffer)) {
    view = new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  } else if (buffer instanceof ArrayBuffer) {
    view = new DataView(buffer);
  } else {
    return null;
  }
  if (view.byteLength < count * 8) return null;
  const values = new Float64Array(count);
  for (let i = 0; i < count; i++) values[i] = view.getFloat64(i * 8, true);
  return values;
}

function asFields(value: unknown): Fields | null {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Fields)
    : null;
}

function text(value: unknown, limit: number = LIMITS.text): string | null {
  if (typeof value !== "string") return null;
  return value.length > limit ? `${value.slice(0, limit)}…` : value;
}

function number(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function integer(value: unknown): number | null {
  return typeof value === "number" && Number.isSafeInteger(value) ? value : null;
}

function oneOf<T extends string>(known: readonly T[], value: unknown): T | null {
  return known.find((one) => one === value) ?? null;
}

/** A short, printable form of a value that should not have been there. */
function describe(value: unknown): string {
  if (value === undefined) return "nothing";
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object" && value !== null) return "an object";
  const shown = typeof value === "string" ? `"${value}"` : String(value);
  return shown.length > 60 ? `${shown.slice(0, 59)}…` : shown;
}
