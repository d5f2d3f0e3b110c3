/** What the reader chose to look at; it lives as long as the page's session. */
import type { XAxis } from "./plot_data";
import { TABS, type TabName } from "./tabs";

export const CELLS = ["use", "memory", "step", "wait", "data"] as const;
/** What the cells of the devices' strip show. */
export type Cells = (typeof CELLS)[number];

/** Shared by the views. */
export interface Choices {
  tab: TabName;
  /** The metrics with a chart. Null until the reader chose: then the panel picks. */
  metrics: string[] | null;
  x: XAxis;
  log: boolean;
  /** Weight of the past in the smoothed lines, 0 (off) to 0.99. */
  smooth: number;
  cells: Cells;
  /** Whose log is shown: a rank, or a lane of a search; null: all. */
  logs: number | null;
  /** Lines of the charts that are switched off, by their key. */
  readonly hidden: Set<string>;
  /** Ranks with lines of their own, in the order they were pinned. */
  readonly pinned: Set<number>;
}

export function loadChoices(run: string): Choices {
  const kept = read(run);
  const known = <T extends string>(list: readonly T[], value: unknown): T | undefined =>
    list.find((one) => one === value);
  const { metrics, smooth } = kept;
  return {
    tab: known(TABS, kept["tab"]) ?? "overview",
    metrics: Array.isArray(metrics)
      ? metrics.filter((one): one is string => typeof one === "string")
      : null,
    x: known(["step", "epoch", "time"] as const, kept["x"]) ?? "step",
    log: kept["log"] === true,
    smooth: typeof smooth === "number" && smooth > 0 && smooth < 1 ? smooth : 0,
    cells: known(CELLS, kept["cells"]) ?? "use",
    logs: null,
    hidden: new Set(),
    pinned: new Set(),
  };
}

export function saveChoices(run: string, { tab, metrics, x, log, smooth, cells }: Choices): void {
  try {
    sessionStorage.setItem(keyOf(run), JSON.stringify({ tab, metrics, x, log, smooth, cells }));
  } catch {
    // No storage here (a sandboxed page, a full one): the choice lasts as long as the view.
  }
}

function read(run: string): Record<string, unknown> {
  try {
    const kept: unknown = JSON.parse(sessionStorage.getItem(keyOf(run)) ?? "{}");
    return typeof kept === "object" && kept !== null ? (kept as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

function keyOf(run: string): string {
  return `raynb.panel:${run}`;
}
