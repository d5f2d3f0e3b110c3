/** What the panel knows: snapshots and deltas applied, bounded, no DOM. */
import { unknownWorker } from "./decode";
import { unknownTrial } from "./decode_search";
import type { Trial } from "./search_wire";
import { Band, Series } from "./series";
import type {
  BandPart,
  Focus,
  Hint,
  LogFile,
  LogLine,
  Run,
  SeriesPart,
  TimelineEvent,
  Update,
  Worker,
} from "./wire";

/** Log lines kept of each rank, and of all ranks together. */
export const MAX_LOG_LINES = 300;
export const MAX_ALL_LOG_LINES = 12_000;
export const MAX_EVENTS = 500;
export const MAX_METRICS = 300;

/** Which parts of the state an update touched; views skip what did not change. */
export interface Changed {
  run: boolean;
  workers: boolean;
  trials: boolean;
  series: boolean;
  /** A pinned or a worst rank changed. */
  focus: boolean;
  hints: boolean;
  logs: boolean;
  /** A log that was asked for has come. */
  files: boolean;
  events: boolean;
  /** The reader chose something else to look at (metric, rank). */
  choice: boolean;
  /** The reader points at another trial. */
  pointed: boolean;
  /** A second went by. */
  tick: boolean;
  problems: boolean;
}

export function changes(all = false): Changed {
  return {
    run: all,
    workers: all,
    trials: all,
    series: all,
    focus: all,
    hints: all,
    logs: all,
    files: all,
    events: all,
    choice: all,
    pointed: all,
    tick: all,
    problems: all,
  };
}

export class PanelState {
  run: Run | null = null;
  /** Seconds to add to the browser's clock to get the kernel's. */
  private clockOffset = Number.NEGATIVE_INFINITY;
  readonly workers = new Map<number, Worker>();
  /** Of a search, by index. */
  readonly trials = new Map<number, Trial>();
  /** Grows whenever the trials or the search changed. */
  trialsVersion = 0;
  /** metric -> rank -> attempts, oldest first. */
  readonly series = new Map<string, Map<number, Series[]>>();
  /** metric -> attempts, oldest first; only in a run of many ranks. */
  readonly bands = new Map<string, Band[]>();
  /** metric -> a number that grows whenever its series or bands change. */
  readonly versions = new Map<string, number>();
  focus: Focus = { pinned: [], worst: new Map() };
  hints: readonly Hint[] = [];
  /** The last lines of each rank, in the order of their first arrival. */
  readonly logs = new Map<number, LogLine[]>();
  /** The last lines of all ranks together. */
  readonly allLogs: LogLine[] = [];
  readonly logsDropped = new Map<number, number>();
  /** Lines on stderr that ever came; of a line that is replaced, one. */
  errorLines = 0;
  /** The newest line of each rank that `errorLines` knows about. */
  private readonly counted = new Map<number, number>();
  /** The downloads that came, by rank, without their bytes. */
  readonly files = new Map<number, Omit<LogFile, "data">>();
  readonly events: TimelineEvent[] = [];
  /** Events that no longer fit. */
  eventsForgotten = 0;
  seq: number | null = null;
  hasSnapshot = false;
  /** Whether something was missed, so that a new snapshot is wanted. */
  incomplete = false;
  readonly problems: string[] = [];

  /** @param clock - UNIX seconds; by default of a clock that does not jump when it is set anew. */
  constructor(
    private readonly clock: () => number = () =>
      (performance.timeOrigin + performance.now()) / 1000,
  ) {}

  /** The kernel's time now, as far as the last message tells. */
  now(): number {
    return this.clock() + (Number.isFinite(this.clockOffset) ? this.clockOffset : 0);
  }

  /** All metrics, in the order of their first value. */
  metrics(): string[] {
    return [...new Set([...this.series.keys(), ...this.bands.keys()])];
  }

  /** Hints that still hold, the gravest first, each level in the kernel's order. */
  activeHints(): Hint[] {
    return this.hints
      .filter((hint) => hint.until === null)
      .sort((a, b) => GRAVITY[b.level] - GRAVITY[a.level]);
  }

  /** All ranks; in a search, where series are of trials, all lanes. */
  ranks(): number[] {
    const ranks = new Set<number>(this.workers.keys());
    if (this.run?.search == null) {
      for (const byRank of this.series.values()) for (const rank of byRank.keys()) ranks.add(rank);
    }
    for (const rank of this.logs.keys()) ranks.add(rank);
    return [...ranks].sort((a, b) => a - b);
  }

  /** What the run consists of. */
  get noun(): "rank" | "trial" {
    return this.run?.search == null ? "rank" : "trial";
  }

  /** What has a log: "rank 3"; in a search "trial 3", or "trial 3 rank 1". */
  nameOf(rank: number): string {
    const workers = this.run?.search?.workers;
    if (workers === undefined) return `rank ${rank}`;
    const name = `trial ${Math.floor(rank / workers)}`;
    return workers === 1 ? name : `${name} rank ${rank % workers}`;
  }

  latest(metric: string, rank: number): number | null {
    return this.series.get(metric)?.get(rank)?.at(-1)?.newest("last") ?? null;
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
      this.trialsVersion += 1;
    }
    for (const patch of update.workers) {
      // A new object, so that views tell by identity which rows changed.
      const known = this.workers.get(patch.rank) ?? unknownWorker(patch.rank);
      this.workers.set(patch.rank, { ...known, ...patch });
    }
    changed.workers ||= update.workers.length > 0;
    for (const patch of update.trials) {
      const known = this.trials.get(patch.trial) ?? unknownTrial(patch.trial);
      this.trials.set(patch.trial, { ...known, ...patch });
    }
    changed.trials ||= update.trials.length > 0;
    if (changed.trials) this.trialsVersion += 1;
    if (update.focus !== null) {
      this.focus = update.focus;
      changed.focus = true;
    }
    for (const part of update.series) this.applySeries(part);
    for (const part of update.bands) this.applyBand(part);
    changed.series ||= update.series.length > 0 || update.bands.length > 0;
    // After the series: those of ranks that just came into focus stay.
    if (update.focus !== null) this.forgetOutOfFocus();
    if (update.hints !== null) {
      this.hints = update.hints;
      changed.hints = true;
    }
    for (const line of update.logs) this.applyLog(line);
    this.trimLogs();
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

  /** Keeps what a download was, for the views; the bytes go to the reader's disk. */
  received({ data: _, ...file }: LogFile): Changed {
    this.files.set(file.rank, file);
    return { ...changes(), files: true };
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
    this.trials.clear();
    this.series.clear();
    this.bands.clear();
    this.focus = { pinned: [], worst: new Map() };
    this.hints = [];
    this.logs.clear();
    this.allLogs.length = 0;
    this.logsDropped.clear();
    this.events.length = 0;
    this.eventsForgotten = 0;
    this.hasSnapshot = true;
    this.incomplete = false;
  }

  private applySeries(part: SeriesPart): void {
    if (!this.makesRoomFor(part.metric)) return;
    const byRank = getOr(this.series, part.metric, () => new Map<number, Series[]>());
    const attempts = getOr(byRank, part.rank, (): Series[] => []);
    const series = attemptOf(attempts, part.attempt, () => new Series(part.metric, part.rank, part.attempt));
    if (!series.apply(part)) this.incomplete = true;
  }

  private applyBand(part: BandPart): void {
    if (!this.makesRoomFor(part.metric)) return;
    const attempts = getOr(this.bands, part.metric, (): Band[] => []);
    const band = attemptOf(attempts, part.attempt, () => new Band(part.metric, part.attempt));
    if (!band.apply(part)) this.incomplete = true;
  }

  private makesRoomFor(metric: string): boolean {
    const version = this.versions.get(metric);
    const full = Math.max(this.series.size, this.bands.size) >= MAX_METRICS;
    if (full && !this.series.has(metric) && !this.bands.has(metric)) {
      this.report(`only the first ${MAX_METRICS} metrics are shown`);
      return false;
    }
    this.versions.set(metric, (version ?? 0) + 1);
    return true;
  }

  /** The kernel forgets these too, and sends them whole when they are wanted again. */
  private forgetOutOfFocus(): void {
    if (this.run?.detail !== "bands") return;
    const kept = new Set([...this.focus.pinned, ...this.focus.worst.values()]);
    for (const byRank of this.series.values()) {
      for (const rank of byRank.keys()) if (!kept.has(rank)) byRank.delete(rank);
    }
  }

  private applyLog(line: LogLine): void {
    const lines = getOr(this.logs, line.rank, (): LogLine[] => []);
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
    // A snapshot repeats lines, which are not news.
    if (line.seq <= (this.counted.get(line.rank) ?? -1)) return;
    this.counted.set(line.rank, line.seq);
    if (line.stream === "err") this.errorLines += 1;
  }

  private trimLogs(): void {
    for (const lines of this.logs.values()) {
      if (lines.length > MAX_LOG_LINES) lines.splice(0, lines.length - MAX_LOG_LINES);
    }
    const excess = this.allLogs.length - MAX_ALL_LOG_LINES;
    if (excess > 0) this.allLogs.splice(0, excess);
  }
}

const GRAVITY = { info: 0, warn: 1, error: 2 } as const;

function getOr<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = make()));
  return value;
}

function attemptOf<T extends { attempt: number }>(list: T[], attempt: number, make: () => T): T {
  let found = list.find((one) => one.attempt === attempt);
  if (found === undefined) {
    list.push((found = make()));
    list.sort((a, b) => a.attempt - b.attempt);
  }
  return found;
}
