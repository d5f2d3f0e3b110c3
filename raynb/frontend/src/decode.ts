/**
 * What the kernel says, checked. The decoder trusts nothing: fields it does not
 * know are ignored, values of a wrong shape become "unknown" and are reported,
 * and every list and text has a bound, so that no message can make the panel
 * blank or the page slow.
 */
import { decodeError, decodeSearch, decodeTrial } from "./decode_search";
import {
  asFields,
  describe,
  integer,
  items,
  number,
  oneOf,
  Problems,
  text,
  type Fields,
} from "./read";
import { SEARCH_LIMITS } from "./search_wire";
import {
  BAND_ROWS,
  EVENT_LEVELS,
  HINT_KINDS,
  LIMITS,
  MAX_PINNED,
  ROWS,
  RUN_STATES,
  WIRE_VERSION,
  WORKER_STATUSES,
  type BandPart,
  type Best,
  type Focus,
  type Hint,
  type LogFile,
  type LogLine,
  type Message,
  type Run,
  type SeriesPart,
  type Shard,
  type TimelineEvent,
  type Worker,
  type WorkerPatch,
} from "./wire";

export interface Decoded {
  /** Null when the message as a whole makes no sense; `problems` says why. */
  message: Message | null;
  problems: string[];
}

export function decode(content: unknown, buffers: readonly unknown[] = []): Decoded {
  const problems = new Problems();
  return { message: decodeMessage(content, buffers, problems), problems: problems.list };
}

function decodeMessage(
  content: unknown,
  buffers: readonly unknown[],
  problems: Problems,
): Message | null {
  const fields = asFields(content);
  if (fields === null) {
    problems.add(`the kernel sent ${describe(content)} where a message belongs`);
    return null;
  }
  const kind = fields["kind"];
  if (kind === "ack") {
    return { kind, of: text(fields["of"]) ?? "", trial: integer(fields["trial"]) };
  }
  if (kind !== "snapshot" && kind !== "delta" && kind !== "file") {
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
  if (kind === "file") return decodeFile(fields, buffers, problems);
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
    trials: items(fields, "trials", SEARCH_LIMITS.trials, problems, decodeTrial),
    series: items(fields, "series", LIMITS.series, problems, (item) =>
      decodeSeries(item, buffers, problems),
    ),
    bands: items(fields, "bands", LIMITS.series, problems, (item) =>
      decodePart(item, BAND_ROWS.length, buffers, problems),
    ),
    focus: fields["focus"] === undefined ? null : decodeFocus(fields["focus"], problems),
    hints:
      fields["hints"] === undefined
        ? null
        : items(fields, "hints", LIMITS.hints, problems, decodeHint),
    logs: items(fields, "logs", LIMITS.logs, problems, decodeLog),
    logs_dropped: decodeDropped(fields["logs_dropped"]),
    events: items(fields, "events", LIMITS.events, problems, decodeEvent),
  };
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
      series: number(dropped["series"]) ?? 0,
      refused: number(dropped["refused"]) ?? 0,
    },
    best: decodeBest(f["best"]),
    detail: f["detail"] === "bands" ? "bands" : "ranks",
    search: decodeSearch(f),
  };
}

function decodeBest(value: unknown): Best | null {
  const f = asFields(value);
  const metric = text(f?.["metric"]);
  const best = number(f?.["value"]);
  if (f === null || metric === null || best === null) return null;
  return { metric, value: best, step: number(f["step"]), rank: integer(f["rank"]) };
}

/** How each field of a worker's row is read. */
const WORKER_FIELDS: { [K in keyof Omit<Worker, "rank">]: (value: unknown) => Worker[K] } = {
  attempt: integer,
  node: text,
  ip: text,
  pid: integer,
  status: (value) => oneOf(WORKER_STATUSES, value) ?? "unknown",
  waiting_since: number,
  device: (value) => text(value) ?? "n/a",
  device_kind: (value) => oneOf(["CPU", "GPU"] as const, value),
  util: number,
  mem_used: number,
  mem_total: number,
  mem_process: number,
  temperature: number,
  power: number,
  device_wide: (value) => value === true,
  note: text,
  cpu: number,
  rss: number,
  threads: integer,
  cores: number,
  net_in: number,
  net_out: number,
  disk_read: number,
  disk_write: number,
  net_speed: number,
  step: number,
  rate: number,
  last_report: number,
  records: integer,
  reports: integer,
  step_s: number,
  wait_s: number,
  report_s: number,
  sync_s: number,
  rows_rate: number,
  still_since: number,
  where: text,
  lr: number,
  shards: decodeShards,
};

const WORKER_READERS = Object.entries(WORKER_FIELDS);

/** A worker of which nothing is known yet. */
export function unknownWorker(rank: number): Worker {
  const fields = WORKER_READERS.map(([name, read]) => [name, read(null)] as const);
  return { ...(Object.fromEntries(fields) as unknown as Omit<Worker, "rank">), rank };
}

function decodeWorker(f: Fields, problems: Problems): WorkerPatch | null {
  const rank = integer(f["rank"]);
  if (rank === null || rank < 0) return null;
  const patch: Fields = { rank };
  for (const [name, read] of WORKER_READERS) {
    const value = f[name];
    if (value !== undefined) patch[name] = read(value);
  }
  if (patch["status"] === "unknown") {
    problems.add(`unknown status of rank ${rank}: ${describe(f["status"])}`);
  }
  return patch as unknown as WorkerPatch;
}

function decodeShards(value: unknown): Shard[] {
  if (!Array.isArray(value)) return [];
  return value.slice(0, LIMITS.shards).flatMap((one) => decodeShard(one) ?? []);
}

function decodeShard(value: unknown): Shard | null {
  const f = asFields(value);
  if (f === null) return null;
  return {
    name: text(f["name"]) ?? "shard",
    kind: oneOf(["map", "iterable", "ray"] as const, f["kind"]),
    rows_seen: number(f["rows_seen"]),
    rows_total: number(f["rows_total"]),
    batches_seen: number(f["batches_seen"]),
    batches_total: number(f["batches_total"]),
    batch_size: number(f["batch_size"]),
    rows_dropped: number(f["rows_dropped"]),
    rows_repeated: number(f["rows_repeated"]),
    epoch: number(f["epoch"]),
    shuffle: typeof f["shuffle"] === "boolean" ? f["shuffle"] : null,
    set_epoch: oneOf(["ok", "missing"] as const, f["set_epoch"]),
    eta_s: number(f["eta_s"]),
  };
}

function decodeSeries(
  f: Fields,
  buffers: readonly unknown[],
  problems: Problems,
): SeriesPart | null {
  const rank = integer(f["rank"]);
  if (rank === null || rank < 0) return null;
  const part = decodePart(f, ROWS.length, buffers, problems);
  return part === null ? null : { ...part, rank };
}

function decodePart(
  f: Fields,
  rows: number,
  buffers: readonly unknown[],
  problems: Problems,
): BandPart | null {
  const metric = text(f["metric"]);
  const start = integer(f["start"]);
  const n = integer(f["n"]);
  const buf = integer(f["buf"]);
  if (metric === null || start === null || start < 0) return null;
  if (n === null || n < 0 || buf === null) return null;
  if (start + n > LIMITS.buckets) {
    problems.add(`the series ${describe(metric)} is too long to show`);
    return null;
  }
  const values = n === 0 ? new Float64Array(0) : float64(buffers[buf], rows * n);
  if (values === null) {
    problems.add(`buffer ${buf}, for ${describe(metric)}, is missing or too short`);
    return null;
  }
  return { metric, attempt: integer(f["attempt"]) ?? 0, start, n, values };
}

function decodeFocus(value: unknown, problems: Problems): Focus | null {
  const f = asFields(value);
  if (f === null) {
    problems.add(`"focus" should be an object, not ${describe(value)}`);
    return null;
  }
  const worst = new Map<string, number>();
  for (const [metric, rank] of Object.entries(asFields(f["worst"]) ?? {}).slice(0, LIMITS.focus)) {
    const known = integer(rank);
    if (known !== null && known >= 0) worst.set(metric, known);
  }
  return { pinned: ranksOf(f["pinned"], MAX_PINNED), worst };
}

function decodeHint(f: Fields): Hint | null {
  const title = text(f["title"]);
  if (title === null) return null;
  const kind = oneOf(HINT_KINDS, f["kind"]) ?? "other";
  return {
    id: text(f["id"]) ?? `${kind}: ${title}`,
    kind,
    level: oneOf(EVENT_LEVELS, f["level"]) ?? "info",
    title,
    ranks: ranksOf(f["ranks"], LIMITS.hintRanks),
    evidence: text(f["evidence"]) ?? "",
    threshold: text(f["threshold"]) ?? "",
    fix: text(f["fix"]) ?? "",
    since: number(f["since"]),
    until: number(f["until"]),
  };
}

function decodeFile(
  f: Fields,
  buffers: readonly unknown[],
  problems: Problems,
): LogFile | null {
  const rank = integer(f["rank"]);
  const view = viewOf(buffers[0]);
  if (rank === null || view === null) {
    problems.add("the kernel sent a file without a rank or without its bytes");
    return null;
  }
  const data = new Uint8Array(view.byteLength);
  data.set(new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
  return {
    kind: "file",
    rank,
    name: fileName(text(f["name"])) ?? `rank-${rank}.log`,
    whole: f["whole"] === true,
    note: text(f["note"]),
    data,
  };
}

/** A plain name: no folders, nothing hidden, no control characters. */
function fileName(name: string | null): string | null {
  const plain = (name ?? "").replace(/[^\p{L}\p{N}._ -]/gu, "-").replace(/^[.\s]+/, "");
  return plain === "" ? null : plain.slice(-LIMITS.fileName);
}

function ranksOf(value: unknown, limit: number): number[] {
  if (!Array.isArray(value)) return [];
  return value.slice(0, limit).filter((one): one is number => (integer(one) ?? -1) >= 0);
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
  const view = viewOf(buffer);
  if (view === null || view.byteLength < count * 8) return null;
  const values = new Float64Array(count);
  for (let i = 0; i < count; i++) values[i] = view.getFloat64(i * 8, true);
  return values;
}

function viewOf(buffer: unknown): DataView | null {
  if (ArrayBuffer.isView(buffer)) {
    return new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  }
  return buffer instanceof ArrayBuffer ? new DataView(buffer) : null;
}
