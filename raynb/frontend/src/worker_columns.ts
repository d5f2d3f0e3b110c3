/** The columns of the workers table: how each is read, sorted, drawn and summed up. */
import { h, setAttr, setText, setTitle, show } from "./dom";
import {
  formatBytes,
  formatClock,
  formatCount,
  formatDuration,
  formatMemory,
  formatPercent,
  formatSeconds,
  formatShort,
  plural,
  UNKNOWN,
} from "./format";
import { icon, swatch, type IconName } from "./icons";
import { rankStyle } from "./palette";
import { known, median, percentOf, shareOf, total } from "./stats";
import { PARTS } from "./panels/split_bar";
import { textCell, type Cell, type Column } from "./table";
import type { Theme } from "./theme";
import { ownSeconds, splitOf, type Split, type Timing } from "./vitals";
import type { Worker, WorkerStatus } from "./wire";

/** A rank whose own time a step is this many times the median is slow. */
export const SLOW_FACTOR = 1.3;

/** A worker and what comparing it with the others tells. */
export interface RankRow {
  worker: Worker;
  /** Its own time a step, as so many times the median of all ranks'. */
  own: number | null;
  pinned: boolean;
}

/** What the cells need to know besides their row. */
export interface Surroundings {
  now: number;
  theme: Theme;
  /** The seconds that fill the step bar. */
  stepScale: number;
}

export const STATUSES: Record<WorkerStatus, { icon: IconName; tone: string; order: number }> = {
  failed: { icon: "cross", tone: "bad", order: 0 },
  unknown: { icon: "question", tone: "idle", order: 1 },
  waiting: { icon: "clock", tone: "busy", order: 2 },
  starting: { icon: "power", tone: "busy", order: 3 },
  running: { icon: "play", tone: "good", order: 4 },
  stopped: { icon: "stop", tone: "idle", order: 5 },
  finished: { icon: "check", tone: "good", order: 6 },
};

/** The rank's own work first, so that where it ends compares the ranks; then the wait. */
const STEP_PARTS: readonly (keyof Split)[] = ["rest", "wait", "report", "sync"];
const WORDS = Object.fromEntries(PARTS.map(({ part, words }) => [part, words])) as Record<keyof Split, string>;
const MEANING: Record<keyof Split, string> = {
  rest: "forward, backward, optimizer and all else",
  wait: "waiting for the next batch",
  sync: "waiting for the other ranks' gradients",
  report: "inside ray.train.report()",
};

export function stepLegend(): HTMLElement {
  return h(
    "span",
    { class: "rn-parts-legend", attrs: { "aria-label": "Parts of the step time" } },
    ...STEP_PARTS.map((part) =>
      h("span", { title: MEANING[part] }, h("span", { class: `rn-part-key rn-split-${part}` }), WORDS[part]),
    ),
  );
}

/** Rank -> its own time as so many times the median; a lone rank has no peers to compare with. */
export function ownRatios(workers: readonly Worker[]): Map<number, number> {
  const ratios = new Map<number, number>();
  const middle = median(workers.map(ownSeconds));
  if (middle === null || middle <= 0 || workers.length < 2) return ratios;
  for (const worker of workers) {
    const own = ownSeconds(worker);
    if (own !== null) ratios.set(worker.rank, own / middle);
  }
  return ratios;
}

export function isSlow({ own }: RankRow): boolean {
  return own !== null && own > SLOW_FACTOR;
}

/** Since when the train function makes no progress, in words; else null. */
export function stillText(worker: Worker, now: number): string | null {
  if (worker.still_since === null) return null;
  const where = worker.where === null ? "" : ` · at ${worker.where}`;
  return `no step for ${formatDuration(now - worker.still_since)}${where}`;
}

/** The column that leads every table of ranks, but for how its cell looks. */
export const RANK_COLUMN = {
  key: "rank",
  label: "rank",
  title: "Click a row to pin its rank in the charts",
  width: 62,
  numeric: true,
  always: true,
  first: "ascending",
  value: ({ worker }: { worker: Worker }) => worker.rank,
} as const;

export function workerColumns(around: Surroundings): Column<RankRow>[] {
  const number = (
    key: string,
    label: string,
    width: number,
    title: string,
    value: (worker: Worker) => number | null,
    format: (value: number | null) => string,
    more: Partial<Column<RankRow>> & { hint?: (worker: Worker) => string } = {},
  ): Column<RankRow> => ({
    key,
    label,
    title,
    width,
    numeric: true,
    value: ({ worker }) => value(worker),
    cell: textCell(
      ({ worker }) => format(value(worker)),
      ({ worker }) => (value(worker) === null ? (worker.note ?? "") : (more.hint?.(worker) ?? "")),
    ),
    summary: (rows) => {
      const middle = median(rows.map(({ worker }) => value(worker)));
      return { text: format(middle), title: "median" };
    },
    ...more,
  });

  return [
    {
      ...RANK_COLUMN,
      cell: () => rankCell(around),
      summary: (rows) => ({ text: formatCount(rows.length), title: plural(rows.length, "rank") }),
    },
    {
      key: "status",
      label: "status",
      title: "What the worker does now",
      width: 142,
      always: true,
      value: ({ worker }) => STATUSES[worker.status].order - (worker.still_since === null ? 0 : 0.5),
      cell: () => statusCell(around),
      summary: () => ({ text: "median", title: "of the ranks shown, unless a sum is named" }),
    },
    number("step", "step", 56, "Newest step", ({ step }) => step, formatCount, {
      always: true,
      summary: (rows) => {
        const steps = known(rows.map(({ worker }) => worker.step));
        if (steps.length === 0) return null;
        return {
          text: formatCount(median(steps)),
          title: `median; from ${formatCount(Math.min(...steps))} to ${formatCount(Math.max(...steps))}`,
        };
      },
    }),
    number("rate", "steps/s", 60, "Steps a second", ({ rate }) => rate, rateText),
    {
      key: "split",
      label: "step time",
      title: "Mean seconds a step over the last ten seconds, and what they go to",
      width: 146,
      numeric: true,
      value: ({ worker }) => worker.step_s,
      cell: () => splitCell(around),
      summary: (rows) => ({
        text: formatSeconds(median(rows.map(({ worker }) => worker.step_s))),
        title: `median\n${stepTitle(middleTiming(rows), null)}`,
      }),
    },
    {
      key: "own",
      label: "own",
      title:
        "The rank's own time a step, without the wait for the others' gradients, " +
        `as so many times the median; more than ${SLOW_FACTOR} is slow`,
      width: 88,
      numeric: true,
      value: ({ own }) => own,
      cell: ownCell,
      summary: (rows) => {
        const slow = rows.filter(isSlow).length;
        return { text: slow === 0 ? "" : `${formatCount(slow)} slow`, title: "" };
      },
    },
    number("rows", "rows/s", 66, "Rows of the training loader a second", ({ rows_rate }) => rows_rate, formatShort, {
      summary: (rows) => ({
        text: `Σ ${formatShort(total(rows.map(({ worker }) => worker.rows_rate)))}`,
        title: "sum over the ranks shown",
      }),
    }),
    {
      key: "util",
      label: "use",
      title: "How busy the device is",
      width: 86,
      numeric: true,
      value: ({ worker }) => worker.util,
      cell: () => barCell(({ worker }) => ({
        share: worker.util === null ? null : worker.util / 100,
        inner: null,
        text: formatPercent(worker.util),
        title: worker.util === null ? (worker.note ?? "") : wideTitle(worker, "use"),
      })),
      summary: (rows) => ({ text: formatPercent(median(rows.map(({ worker }) => worker.util))), title: "median" }),
    },
    {
      key: "memory",
      label: "memory",
      title: "Memory of the device: in use of all there is",
      width: 174,
      numeric: true,
      value: ({ worker }) => worker.mem_used,
      cell: () => barCell(({ worker }) => ({
        share: shareOf(worker.mem_used, worker.mem_total),
        inner: shareOf(worker.mem_process, worker.mem_total),
        text: formatMemory(worker.mem_used, worker.mem_total),
        title: memoryTitle(worker),
        mark: worker.device_wide ? "shared" : "",
      })),
      summary: (rows) => ({
        text: formatBytes(median(rows.map(({ worker }) => worker.mem_used))),
        title: "median in use",
      }),
    },
    number("temperature", "°C", 38, "Temperature of the GPU", ({ temperature }) => temperature, roundText),
    number("power", "W", 44, "Power draw of the GPU", ({ power }) => power, roundText),
    number("cpu", "cpu", 56, "Percent of the worker's CPUs, its children included", ({ cpu }) => cpu, formatPercent, {
      hint: ({ threads, cores }) =>
        `${threads === null ? UNKNOWN : plural(threads, "torch thread")} on ${cores === null ? UNKNOWN : plural(cores, "core")}`,
    }),
    number("rss", "rss", 62, "Resident memory of the worker and its children", ({ rss }) => rss, formatBytes),
    number("reports", "reports", 58, "Calls of ray.train.report() in this attempt", ({ reports }) => reports, formatCount),
    number("age", "record", 58, "Time since the newest record", ({ last_report }) =>
      last_report === null ? null : Math.max(0, around.now - last_report), formatDuration, {
      hint: ({ last_report, records }) =>
        `newest record at ${formatClock(last_report)}${records === null ? "" : `, ${plural(records, "record")} in all`}`,
    }),
    {
      key: "device",
      label: "device",
      title: "The device that use and memory are about",
      width: 138,
      always: true,
      value: ({ worker }) => worker.device,
      cell: textCell(({ worker }) => worker.device, ({ worker }) => worker.note ?? worker.device),
    },
    {
      key: "node",
      label: "node",
      title: "The machine",
      width: 92,
      always: true,
      value: ({ worker }) => worker.node ?? worker.ip,
      cell: textCell(
        ({ worker }) => worker.node ?? worker.ip ?? UNKNOWN,
        ({ worker }) => [worker.node, worker.ip].filter((part) => part !== null).join(" · "),
      ),
    },
    {
      key: "pid",
      label: "pid",
      title: "Process number on the node",
      width: 62,
      numeric: true,
      first: "ascending",
      value: ({ worker }) => worker.pid,
      cell: textCell(({ worker }) => (worker.pid === null ? UNKNOWN : String(worker.pid))),
    },
  ];
}

function rankCell(around: Surroundings): Cell<RankRow> {
  const label = h("span");
  const button = h("button", { class: "rn-pin", attrs: { type: "button" } }, label);
  const node = h("td", {}, button);
  let shown = "";
  return {
    node,
    set({ worker, pinned }) {
      setText(label, String(worker.rank));
      setAttr(button, "aria-pressed", String(pinned));
      setAttr(button, "aria-label", `rank ${worker.rank}: ${pinned ? "unpin from" : "pin in"} the charts`);
      const look = pinned ? `${worker.rank} ${around.theme}` : "";
      if (look === shown) return;
      shown = look;
      button.querySelector("svg")?.remove();
      if (!pinned) return;
      const { stroke, dash } = rankStyle(worker.rank, around.theme);
      button.prepend(swatch(stroke, dash, 2.5));
    },
  };
}

function statusCell(around: Surroundings): Cell<RankRow> {
  const badge = h("span", { class: "rn-badge" });
  const words = h("span");
  const node = h("td", {}, badge);
  let shown: WorkerStatus | null = null;
  return {
    node,
    set({ worker }) {
      const { status, waiting_since, reports } = worker;
      if (status !== shown) {
        shown = status;
        badge.className = `rn-badge rn-tone-${STATUSES[status].tone}`;
        badge.replaceChildren(icon(STATUSES[status].icon), words);
      }
      if (waiting_since === null) {
        setText(words, status);
        setTitle(node, "");
        return;
      }
      const call = reports === null ? "report()" : `report() ${formatCount(reports)}`;
      setText(words, `in ${call} · ${formatDuration(around.now - waiting_since)}`);
      setTitle(node, `waiting in ${call} since ${formatClock(waiting_since)}`);
    },
  };
}

function splitCell(around: Surroundings): Cell<RankRow> {
  const parts = STEP_PARTS.map((part) => h("span", { class: `rn-part rn-split-${part}` }));
  const bar = h("span", { class: "rn-bar-track rn-step-bar" }, ...parts);
  const label = h("span", { class: "rn-step-label" });
  const node = h("td", {}, h("div", { class: "rn-bar" }, bar, label));
  return {
    node,
    set(row) {
      const { worker } = row;
      const { step_s } = worker;
      const split = splitOf(worker) ?? (step_s === null ? null : WHOLE);
      bar.classList.toggle("rn-unknown-track", split === null);
      const length = step_s === null ? 0 : (shareOf(step_s, around.stepScale) ?? 0);
      STEP_PARTS.forEach((part, i) => setWidth(parts[i], length * (split?.[part] ?? 0)));
      setText(label, formatSeconds(step_s));
      setTitle(node, stepTitle(worker, row.own));
    },
  };
}

/** A step of which only the whole is known. */
const WHOLE: Split = { wait: 0, sync: 0, report: 0, rest: 1 };

function stepTitle(timing: Timing & Pick<Worker, "note">, own: number | null): string {
  const { step_s, wait_s, sync_s, report_s, note } = timing;
  if (step_s === null) return note ?? "no step was timed in the last seconds";
  const rest = step_s * (splitOf(timing) ?? WHOLE).rest;
  const seconds: Record<keyof Split, number | null> = { rest, wait: wait_s, sync: sync_s, report: report_s };
  const lines = STEP_PARTS.map((part) => {
    const percent = percentOf(seconds[part], step_s);
    const share = percent === null ? "" : ` (${formatPercent(percent)})`;
    return `${WORDS[part]}: ${formatSeconds(seconds[part])}${share}, ${MEANING[part]}`;
  });
  const remark = own === null ? [] : [`own time: ${own.toFixed(2)} times the median of the ranks`];
  return [`${formatSeconds(step_s)} a step`, ...lines, ...remark].join("\n");
}

function ownCell(): Cell<RankRow> {
  const node = h("td");
  return {
    node,
    set(row) {
      const slow = isSlow(row);
      const times = row.own === null ? UNKNOWN : `${row.own.toFixed(row.own < 10 ? 1 : 0)}×`;
      setText(node, slow ? `slow ${times}` : times);
      node.classList.toggle("rn-slow-cell", slow);
      setTitle(node, stepTitle(row.worker, row.own));
    },
  };
}

/** The medians of the parts, as if of one worker. */
function middleTiming(rows: readonly RankRow[]): Timing & Pick<Worker, "note"> {
  const of = (key: "step_s" | "wait_s" | "sync_s" | "report_s"): number | null =>
    median(rows.map(({ worker }) => worker[key]));
  return { step_s: of("step_s"), wait_s: of("wait_s"), sync_s: of("sync_s"), report_s: of("report_s"), note: null };
}

interface BarLook {
  share: number | null;
  /** A darker part at the start of the bar. */
  inner: number | null;
  text: string;
  title: string;
  mark?: string;
}

/** A bar with its number in words; without a known share it stays empty. */
export function barCell<T>(look: (item: T) => BarLook): Cell<T> {
  const inner = h("span", { class: "rn-bar-fill" });
  const fill = h("span", { class: "rn-bar-fill" });
  const track = h("span", { class: "rn-bar-track" }, inner, fill);
  const label = h("span", { class: "rn-bar-label" });
  const tag = h("span", { class: "rn-tag" });
  const node = h("td", {}, h("div", { class: "rn-bar" }, track, label, tag));
  return {
    node,
    set(item) {
      const { share, inner: part, text, title, mark = "" } = look(item);
      const first = part === null ? 0 : Math.min(part, share ?? 0);
      setWidth(inner, first);
      setWidth(fill, (share ?? 0) - first);
      fill.classList.toggle("rn-bar-other", part !== null);
      track.classList.toggle("rn-unknown-track", share === null);
      setText(label, text);
      show(tag, mark !== "");
      setText(tag, mark);
      setTitle(node, title);
    },
  };
}

export function setWidth(node: HTMLElement | undefined, share: number): void {
  // As the browser writes it, so that a width that stays is not set again.
  const width = `${Number((100 * Math.min(1, Math.max(0, share))).toFixed(1))}%`;
  if (node !== undefined && node.style.width !== width) node.style.width = width;
}

function rateText(rate: number | null): string {
  if (rate === null) return UNKNOWN;
  return rate >= 100 ? formatCount(rate) : String(Number(rate.toPrecision(rate < 1 ? 2 : 3)));
}

function roundText(value: number | null): string {
  return value === null ? UNKNOWN : String(Math.round(value));
}

function wideTitle(worker: Worker, what: string): string {
  const whose = worker.device_wide ? "of the whole GPU, which others use too" : "";
  return [`${what} of ${worker.device}`, whose].filter((part) => part !== "").join(", ");
}

function memoryTitle(worker: Worker): string {
  if (worker.mem_used === null && worker.note !== null) return worker.note;
  const lines = [
    `in use: ${formatBytes(worker.mem_used)} of ${formatBytes(worker.mem_total)}`,
    ...(worker.mem_process === null ? [] : [`by this worker's own processes: ${formatBytes(worker.mem_process)}`]),
    ...(worker.device_wide ? ["device-wide: of the whole GPU, which others use too"] : []),
  ];
  return lines.join("\n");
}
