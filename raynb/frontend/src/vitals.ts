/** The few numbers that say how a run is doing, from its workers' rows. No DOM. */
import { formatCount, formatPercent, formatSeconds, formatShort, plural } from "./format";
import { known, median, rankRuns } from "./stats";
import type { Worker } from "./wire";

/** A step's parts, as shares of the whole. They add up to 1. */
export interface Split {
  wait: number;
  sync: number;
  report: number;
  rest: number;
}

/** What a step's time is told by. */
export type Timing = Pick<Worker, "step_s" | "wait_s" | "sync_s" | "report_s">;

export interface Vital {
  value: string;
  note: string;
}

/** Ranks that still train. */
export function active(workers: Iterable<Worker>): Worker[] {
  return [...workers].filter(({ status }) => status === "running" || status === "waiting");
}

/** How a step's time is split; null where no step was timed, or none of its parts. */
export function splitOf(timing: Timing): Split | null {
  const { step_s, wait_s, sync_s, report_s } = timing;
  if (step_s === null || step_s <= 0) return null;
  if (wait_s === null && sync_s === null && report_s === null) return null;
  const share = (seconds: number | null): number => Math.min(1, Math.max(0, (seconds ?? 0) / step_s));
  const [wait, sync, report] = [share(wait_s), share(sync_s), share(report_s)];
  // Measured apart, the parts may add up to a little more than the whole.
  const whole = Math.max(1, wait + sync + report);
  return {
    wait: wait / whole,
    sync: sync / whole,
    report: report / whole,
    rest: Math.max(0, 1 - (wait + sync + report) / whole),
  };
}

export function meanSplit(workers: readonly Worker[]): Split | null {
  const splits = workers.flatMap((worker) => splitOf(worker) ?? []);
  if (splits.length === 0) return null;
  const mean = (part: keyof Split): number =>
    splits.reduce((sum, split) => sum + split[part], 0) / splits.length;
  return { wait: mean("wait"), sync: mean("sync"), report: mean("report"), rest: mean("rest") };
}

/** Seconds of a step that a rank is busy itself; for its peers it waits, in report() too. */
export function ownSeconds({ step_s, sync_s, report_s }: Timing): number | null {
  return step_s === null ? null : Math.max(0, step_s - (sync_s ?? 0) - (report_s ?? 0));
}

export function busy(workers: readonly Worker[]): Vital {
  const middle = median(workers.map(({ util }) => util));
  const [least] = ordered(workers, ({ util }) => util);
  if (middle === null || least === undefined) return { value: "n/a", note: reasonOf(workers) };
  const note =
    workers.length === 1
      ? (least.worker.device_kind ?? "")
      : `least: rank ${least.worker.rank}, ${formatPercent(least.value)}`;
  return { value: formatPercent(middle), note };
}

export function throughput(workers: readonly Worker[]): Vital {
  const rates = known(workers.map(({ rows_rate }) => rows_rate));
  const steps = median(workers.map(({ rate }) => rate));
  const perSecond = steps === null ? "" : `${formatShort(steps)} steps/s a rank`;
  if (rates.length === 0) return { value: "n/a", note: perSecond };
  const missing = workers.length - rates.length;
  const note = missing > 0 ? `without ${plural(missing, "rank")}` : perSecond;
  return { value: `${formatShort(rates.reduce((sum, rate) => sum + rate, 0))} rows/s`, note };
}

export function stepTime(workers: readonly Worker[]): Vital {
  const middle = median(workers.map(({ step_s }) => step_s));
  return { value: formatSeconds(middle), note: "" };
}

export function slowest(workers: readonly Worker[]): Vital {
  const most = ordered(workers, ownSeconds).at(-1);
  const middle = median(workers.map(ownSeconds));
  if (most === undefined || middle === null) return { value: "n/a", note: "" };
  if (workers.length < 2) return { value: "one rank", note: "" };
  const ratio = middle > 0 ? most.value / middle : 1;
  const times = ratio < 1.05 ? "all alike" : `${ratio.toFixed(ratio < 10 ? 1 : 0)}× the median`;
  return { value: `rank ${most.worker.rank}`, note: `${formatSeconds(most.value)} own work, ${times}` };
}

/** Whether the ranks get the same share of what is trained on, and how far they are. */
export function shares(workers: readonly Worker[]): Vital {
  const first = workers.flatMap(({ shards }) => shards[0] ?? []);
  if (first.length === 0) return { value: "n/a", note: "" };
  const totals = known(first.map(({ rows_total }) => rows_total));
  const seen = known(first.map(({ rows_seen }) => rows_seen)).reduce((sum, rows) => sum + rows, 0);
  if (totals.length < first.length || totals.length === 0) {
    return { value: `${formatShort(seen)} rows seen`, note: "total n/a" };
  }
  const all = totals.reduce((sum, rows) => sum + rows, 0);
  const [least, most] = [Math.min(...totals), Math.max(...totals)];
  const each = least === most ? `${formatCount(most)} rows each` : `${formatCount(least)} to ${formatCount(most)} rows each`;
  const without = workers.length - first.length;
  return {
    value: all > 0 ? `${formatPercent((100 * seen) / all)} seen` : "n/a",
    note: without > 0 ? `${each}, ${plural(without, "rank")} n/a` : each,
  };
}

function ordered(
  workers: readonly Worker[],
  valueOf: (worker: Worker) => number | null,
): { worker: Worker; value: number }[] {
  return workers
    .flatMap((worker) => {
      const value = valueOf(worker);
      return value === null ? [] : [{ worker, value }];
    })
    .sort((a, b) => a.value - b.value);
}

function reasonOf(workers: readonly Worker[]): string {
  const noted = workers.filter(({ note }) => note !== null);
  const [first] = noted;
  return first === undefined ? "" : `ranks ${rankRuns(noted.map(({ rank }) => rank), 3)}: ${first.note}`;
}
