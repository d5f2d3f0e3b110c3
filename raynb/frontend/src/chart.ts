/** The chart: the only module that knows uPlot. */
import uPlot from "uplot";
import { formatDuration, formatValue } from "./format";
import { rankStyle, type LineStyle } from "./palette";
import type { PlotData, PlotLine, XAxis } from "./plot_data";
import type { Theme } from "./theme";

const HEIGHT = 220;

export interface ChartOptions {
  x: XAxis;
  log: boolean;
  theme: Theme;
  hidden: ReadonlySet<string>;
}

export interface CursorValues {
  x: number;
  /** By the line's key. */
  values: Map<string, number | null>;
}

export interface ChartEvents {
  /** The reader points at an x, or no longer does. */
  onCursor(at: CursorValues | null): void;
  onZoom(zoomed: boolean): void;
}

export function lineStyle(line: PlotLine, theme: Theme): LineStyle & { width: number } {
  const dark = theme === "dark";
  if (line.kind === "median") return { stroke: dark ? "#5cb3ec" : "#0072b2", dash: [], width: 2 };
  if (line.kind === "worst") return { stroke: dark ? "#ff8a3d" : "#d55e00", dash: [6, 3], width: 1.5 };
  return { ...rankStyle(line.rank ?? 0, theme), width: 1.5 };
}

export class Chart {
  private plot: uPlot | null = null;
  private shape = "";
  private lines: PlotLine[] = [];
  /** The column of each line's values in uPlot's table. */
  private columns: number[] = [];
  private zoomed = false;
  private width = 0;
  private readonly resizer: ResizeObserver | null;

  constructor(
    private readonly root: HTMLElement,
    private readonly events: ChartEvents,
  ) {
    this.resizer =
      typeof ResizeObserver === "function" ? new ResizeObserver(() => this.fit()) : null;
    this.resizer?.observe(root);
  }

  draw(data: PlotData, options: ChartOptions): void {
    this.lines = data.lines;
    this.columns = [];
    const table: uPlot.AlignedData = [data.x];
    for (const line of data.lines) {
      this.columns.push(table.length);
      table.push(line.values as number[]);
      if (line.band !== null) table.push(line.band[0] as number[], line.band[1] as number[]);
    }
    // uPlot keeps its series for good, so another set of lines is another plot.
    const shape = JSON.stringify([
      options.x,
      options.log,
      options.theme,
      data.lines.map((line) => [line.key, line.kind, line.rank, line.band !== null]),
    ]);
    if (this.plot === null || shape !== this.shape) {
      this.shape = shape;
      this.rebuild(table, options);
    } else {
      this.plot.setData(table, !this.zoomed);
      if (this.zoomed) this.plot.redraw();
    }
    this.applyHidden(options.hidden);
  }

  /** Moves the cursor by points, for the keyboard. */
  moveCursor(by: number): void {
    const plot = this.plot;
    if (plot === null) return;
    const xs = plot.data[0];
    const last = (xs?.length ?? 0) - 1;
    const to = Math.min(last, Math.max(0, (plot.cursor.idx ?? (by > 0 ? -1 : last + 1)) + by));
    const x = xs?.[to];
    if (x === undefined) return;
    plot.setCursor({ left: plot.valToPos(x, "x"), top: plot.over.clientHeight / 2 });
  }

  hideCursor(): void {
    this.plot?.setCursor({ left: -10, top: -10 });
  }

  resetZoom(): void {
    this.setZoomed(false);
    this.plot?.setData(this.plot.data, true);
  }

  destroy(): void {
    this.resizer?.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  private fit(): void {
    const width = this.root.clientWidth;
    if (width <= 0 || width === this.width) return;
    this.width = width;
    this.plot?.setSize({ width, height: HEIGHT });
  }

  private setZoomed(zoomed: boolean): void {
    if (zoomed === this.zoomed) return;
    this.zoomed = zoomed;
    this.events.onZoom(zoomed);
  }

  private applyHidden(hidden: ReadonlySet<string>): void {
    const plot = this.plot;
    if (plot === null) return;
    this.lines.forEach((line, i) => {
      const column = this.columns[i];
      if (column === undefined) return;
      const visible = !hidden.has(line.key);
      const count = line.band === null ? 1 : 3;
      for (let c = column; c < column + count; c++) {
        if (plot.series[c]?.show !== visible) plot.setSeries(c, { show: visible });
      }
    });
  }

  private rebuild(table: uPlot.AlignedData, options: ChartOptions): void {
    this.plot?.destroy();
    this.setZoomed(false);
    this.width = this.root.clientWidth || 640;
    const style = getComputedStyle(this.root);
    const colour = (name: string, fallback: string): string =>
      style.getPropertyValue(name).trim() || fallback;
    const text = colour("--raynb-muted", "#616161");
    const grid = { stroke: colour("--raynb-grid", "#e0e0e0"), width: 1 };
    const font = `11px ${colour("--raynb-font", "system-ui, sans-serif")}`;

    const series: uPlot.Series[] = [{}];
    const bands: uPlot.Band[] = [];
    for (const line of this.lines) {
      const { stroke, dash, width } = lineStyle(line, options.theme);
      series.push({ stroke, dash: [...dash], width, points: { size: 4, fill: stroke } });
      if (line.band === null) continue;
      const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
      const lo = series.length;
      series.push(edge, { ...edge });
      bands.push({ series: [lo + 1, lo], fill: withAlpha(stroke, line.kind === "median" ? 0.16 : 0.1) });
    }

    this.plot = new uPlot(
      {
        width: this.width,
        height: HEIGHT,
        series,
        bands,
        padding: [8, 12, 0, 0],
        legend: { show: false },
        cursor: {
          y: false,
          points: { size: 6 },
          drag: { x: true, y: false, dist: 5 },
          bind: {
            dblclick: () => () => {
              this.resetZoom();
              return null;
            },
          },
        },
        scales: {
          x: {
            time: false,
            range: (_, min, max) => rangeX(min, max),
          },
          y: {
            distr: options.log ? 3 : 1,
            range: (_, min, max) => rangeY(min, max, options.log),
          },
        },
        axes: [
          {
            stroke: text,
            font,
            grid,
            ticks: { ...grid, size: 4 },
            size: 24,
            gap: 4,
            space: 70,
            ...(options.x === "step" ? { incrs: STEP_INCREMENTS } : { incrs: TIME_INCREMENTS }),
            values: (_, splits) =>
              splits.map((at) => (options.x === "time" ? formatDuration(at) : formatStep(at))),
          },
          {
            stroke: text,
            font,
            grid,
            ticks: { ...grid, size: 4 },
            size: 58,
            gap: 4,
            space: 34,
            values: (_, splits) => splits.map((at) => (at === null ? "" : formatValue(at))),
          },
        ],
        hooks: {
          setCursor: [(plot) => this.tellCursor(plot)],
          setSelect: [(plot) => this.setZoomed(this.zoomed || plot.select.width > 0)],
        },
      },
      table,
      this.root,
    );
  }

  private tellCursor(plot: uPlot): void {
    const { idx, left } = plot.cursor;
    const x = idx === null || idx === undefined ? undefined : plot.data[0]?.[idx];
    if (x === undefined || (left ?? -1) < 0) {
      this.events.onCursor(null);
      return;
    }
    const values = new Map<string, number | null>();
    this.lines.forEach((line, i) => {
      const column = this.columns[i] ?? 0;
      const at = plot.cursor.idxs?.[column];
      values.set(line.key, at === null || at === undefined ? null : (line.values[at] ?? null));
    });
    this.events.onCursor({ x, values });
  }
}

/** 1, 2, 5 times powers of ten: steps are whole numbers. */
const STEP_INCREMENTS = Array.from({ length: 12 }, (_, power) =>
  [1, 2, 5].map((digit) => digit * 10 ** power),
).flat();
const TIME_INCREMENTS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800,
];

function rangeX(min: number | null, max: number | null): uPlot.Range.MinMax {
  if (min === null || max === null) return [0, 1];
  return min === max ? [min - 1, max + 1] : [min, max];
}

function rangeY(min: number | null, max: number | null, log: boolean): uPlot.Range.MinMax {
  if (min === null || max === null || !Number.isFinite(min) || !Number.isFinite(max)) {
    return log ? [0.1, 1] : [0, 1];
  }
  if (log) return min > 0 ? rangeLog(min, max) : [0.1, 1];
  if (min === max) {
    const room = Math.abs(min) * 0.1 || 1;
    return [min - room, max + room];
  }
  return uPlot.rangeNum(min, max, 0.1, true);
}

/** Out to the next round digit: whole decades would waste half of the height. */
function rangeLog(min: number, max: number): uPlot.Range.MinMax {
  const magnitude = (value: number): number => 10 ** Math.floor(Math.log10(value));
  const round = (value: number, to: (ratio: number) => number): number =>
    Number((to(value / magnitude(value)) * magnitude(value)).toPrecision(1));
  const lo = round(min * 0.97, Math.floor);
  return [lo, Math.max(round(max * 1.03, Math.ceil), lo * 2)];
}

function formatStep(step: number): string {
  if (step >= 1e6) return `${Number((step / 1e6).toFixed(2))}M`;
  if (step >= 1e4) return `${Number((step / 1e3).toFixed(1))}k`;
  return String(step);
}

function withAlpha(hex: string, alpha: number): string {
  return hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
