/**
 * What the panel knows: snapshots and deltas applied, bounded, no DOM.
 *
 * A series can start past its first bucket (`base`): a view that opened while
 * the kernel was too busy for a snapshot shows what came since, and asks again.
 */
import {
  ROWS,
  type LogLine,
  type Row,
  type Run,
  type SeriesPart,
  type TimelineEvent,
  type Update,
  type Worker,
} from "./wire";

export const MAX_LOG_LINES = 500;
export const MAX_EVENTS = 500;
export const MAX_METRICS = 500;

/** A growing table of buckets: one column a row of the wire's buffers. */
export class Series {
  base = 0;
  length = 0;
  private columns: Record<Row, Float64Array>;

  constructor(
    readonly metric: string,
    readonly rank: number,
    readonly attempt: number,
  ) {
    this.columns = emptyColumns(0);
  }

  column(row: Row): Float64Array {
    return this.columns[row].subarray(0, this.length);
  }

  at(row: Row, index: number): number {
    return this.columns[row][index] ?? Number.NaN;
  }

  /** The newest value, or null where there is none yet. */
  get latest(): number | null {
    return this.length === 0 ? null : this.at("last", this.length - 1);
  }

  /** Truncates to `part.start`, appends; false when buckets in between are missing. */
  apply(part: SeriesPart): boolean {
    const joins = part.start >= this.base && part.start <= this.base + this.length;
    if (!joins) {
      this.base = part.start;
      this.length = 0;
    }
    const keep = part.start - this.base;
    this.reserve(keep + part.n);
    ROWS.forEach((row, r) => {
      this.columns[row].set(part.values.subarray(r * part.n, (r + 1) * part.n), keep);
    });
    this.length = keep + part.n;
    return joins || part.start === 0;
  }

  private reserve(count: number): void {
    const capacity = this.columns.step.length;
    if (count <= capacity) return;
    const grown = emptyColumns(Math.max(count, capacity * 2, 64));
    for (const row of ROWS) grown[row].set(this.column(row));
    this.columns = grown;
  }
}

function emptyColumns(size: number): Record<Row, Float64Array> {
  return {
    step: new Float64Array(size),
    time: new Float64Array(size),
    last: new Float64Array(size),
    min: new Float64Array(size),
    max: new Float64Array(size),
  };
}

/** Which parts of the state an update touched; views skip what did not change. */
export interface Changed {
  run: boolean;
  workers: boolean;
  series: boolean;
  logs: boolean;
  events: boolean;
  /** The reader chose something else to look at (metric, rank). */
  choice: boolean;
  /** A second went by. */
  tick: boolean;
}

export function changes(all = false): Changed {
  return {
    run: all,
    workers: all,
    series: all,
    logs: all,
    events: all,
    choice: all,
    tick: all,
  };
}

export class PanelState {
  run: Run | null = null;
  /** Seconds to add to the browser's clock to get the kernel's. */
  private clockOffset = Number.NEGATIVE_INFINITY;
  readonly workers = new Map<number, Worker>();
  /** metric -> rank -> attempts, oldest first. */
  readonly series = new Map<string, Map<number, Series[]>>();
  /** The last lines of each rank, in the order of their first arrival. */
  readonly logs = new Map<number, LogLine[]>();
  /** The last lines of all ranks together. */
  readonly allLogs: LogLine[] = [];
  readonly logsDropped = new Map<number, number>();
  readonly events: TimelineEvent[] = [];
  /** Events that no longer fit. */
  eventsForgotten = 0;
  seq: number | null = null;
  hasSnapshot = false;
  /** Whether something was missed, so that a new snapshot is wanted. */
  incomplete = false;
  readonly problems: string[] = [];

  constructor(private readonly clock: () => number = () => Date.now() / 1000) {}

  /** The kernel's time now, as far as the last message tells. */
  now(): number {
    return this.clock() + (Number.isFinite(this.clockOffset) ? this.clockOffset : 0);
  }

  metrics(): string[] {
    return [...this.series.keys()];
  }

  ranks(): number[] {
    const ranks = new Set<number>(this.workers.keys());
    for (const byRank of this.series.values()) for (const rank of byRank.keys()) ranks.add(rank);
    for (const rank of this.logs.keys()) ranks.add(rank);
    return [...ranks].sort((a, b) => a - b);
  }

  latest(metric: string, rank: number): number | null {
    return this.series.get(metric)?.get(rank)?.at(-1)?.latest ?? null;
  }

  apply(update: Update): Changed {
    // A snapshot holds all that was sent before it, so a delta that is not
    // newer was overtaken by one: applying it again would repeat events.
    const stale = update.kind === "delta" && this.seq !== null && update.seq <= this.seq;
    if (stale) return changes();

    const changed = changes(update.kind === "snapshot");
    if (update.kind === "snapshot") this.reset();
    else if (!this.hasSnapshot || update.seq !== (this.seq ?? 0) + 1) this.incomplete = true;
    this.seq = update.seq;

    if (update.run !== null) {
      this.run = update.run;
      // A message can only be late, so the largest difference is the truest.
      if (update.run.now !== null) {
        this.clockOffset = Math.max(this.clockOffset, update.run.now - this.clock());
      }
      changed.run = true;
    }
    for (const worker of update.workers) this.workers.set(worker.rank, worker);
    changed.workers ||= update.workers.length > 0;
    for (const part of update.series) this.applySeries(part);
    changed.series ||= update.series.length > 0;
    for (const line of update.logs) this.applyLog(line);
    for (const [rank, count] of update.logs_dropped) this.logsDropped.set(rank, count);
    changed.logs ||= update.logs.length > 0 || update.logs_dropped.size > 0;
    this.events.push(...update.events);
    const excess = this.events.length - MAX_EVENTS;
    if (excess > 0) {
      this.events.splice(0, excess);
      this.eventsForgotten += excess;
    }
    changed.events ||= update.events.length > 0;
    return changed;
  }

  /** Remembers something that went wrong, once, so that the panel shows it. */
  report(problem: string): boolean {
    if (this.problems.includes(problem)) return false;
    this.problems.push(problem);
    if (this.problems.length > 50) this.problems.shift();
    return true;
  }

  private reset(): void {
    this.workers.clear();
    this.series.clear();
    this.logs.clear();
    this.allLogs.length = 0;
    this.logsDropped.clear();
    this.events.length = 0;
    this.eventsForgotten = 0;
    this.hasSnapshot = true;
    this.incomplete = false;
  }

  private applySeries(part: SeriesPart): void {
    let byRank = this.series.get(part.metric);
    if (byRank === undefined) {
      if (this.series.size >= MAX_METRICS) {
        this.report(`only the first ${MAX_METRICS} metrics are shown`);
        return;
      }
      this.series.set(part.metric, (byRank = new Map()));
    }
    let attempts = byRank.get(part.rank);
    if (attempts === undefined) byRank.set(part.rank, (attempts = []));
    let series = attempts.find((one) => one.attempt === part.attempt);
    if (series === undefined) {
      series = new Series(part.metric, part.rank, part.attempt);
      attempts.push(series);
      attempts.sort((a, b) => a.attempt - b.attempt);
    }
    if (!series.apply(part)) this.incomplete = true;
  }

  private applyLog(line: LogLine): void {
    let lines = this.logs.get(line.rank);
    if (lines === undefined) this.logs.set(line.rank, (lines = []));
    const newest = lines.at(-1);
    const isNew = newest === undefined || newest.seq < line.seq;
    const old = isNew ? undefined : lines.find((one) => one.seq === line.seq);
    if (old !== undefined) {
      // In place, so that the line keeps its spot in both lists.
      old.text = line.text;
      old.stream = line.stream;
      return;
    }
    lines.push(line);
    this.allLogs.push(line);
    if (lines.length > MAX_LOG_LINES) lines.splice(0, lines.length - MAX_LOG_LINES);
    if (this.allLogs.length > MAX_LOG_LINES) {
      this.allLogs.splice(0, this.allLogs.length - MAX_LOG_LINES);
    }
  }
}
