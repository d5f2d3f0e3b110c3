/** The chart: the only module that knows uPlot. */
import uPlot from "uplot";
import { formatDuration, formatValue } from "./format";
import { lineStyle } from "./palette";
import type { PlotData, PlotLine, XAxis } from "./plot_data";
import type { Theme } from "./theme";

const HEIGHT = 190;
/** Marks of values that are no number, in one chart. */
const MAX_MARKS = 400;
const MARK_SIZE = 3;
/** The y axis is so wide, and wider where its labels need it, by pixels a character. */
const AXIS_WIDTH = 52;
const LABEL_CHAR = 7;

export interface ChartOptions {
  x: XAxis;
  log: boolean;
  theme: Theme;
  hidden: ReadonlySet<string>;
}

/** Where the reader points. */
export interface Pointed {
  /** The index into the data's x. */
  index: number;
  /** By the line's key, the index of its value nearest to the pointer. */
  at: Map<string, number>;
  /** In pixels, from the chart's left edge. */
  left: number;
  /** Whether the reader points into this chart, not into one beside it. */
  here: boolean;
}

export interface ChartEvents {
  /** The reader points at an x, or no longer does. */
  onPoint(at: Pointed | null): void;
  onZoom(zoomed: boolean): void;
  /** The reader wants to see all again. */
  onReset(): void;
}

function labelWidth(labels: readonly string[]): number {
  const longest = Math.max(0, ...labels.map((label) => label.length));
  return Math.max(AXIS_WIDTH, 12 + LABEL_CHAR * longest);
}

export class Chart {
  private plot: uPlot | null = null;
  private shape = "";
  private lines: PlotLine[] = [];
  /** The column of each line's values in uPlot's table. */
  private columns: number[] = [];
  private zoomed = false;
  private width = 0;
  private byKeys = false;
  private readonly resizer: ResizeObserver | null;

  /** Charts with the same `group` share pointer and zoom. */
  constructor(
    private readonly root: HTMLElement,
    private readonly group: string,
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
      if (line.raw !== null) table.push(line.raw as number[]);
      this.columns.push(table.length);
      table.push(line.values as number[]);
      if (line.band !== null) table.push(line.band[0] as number[], line.band[1] as number[]);
    }
    // uPlot keeps its series for good, so another set of lines is another plot.
    const shape = JSON.stringify([
      options.x,
      options.log,
      options.theme,
      data.lines.map((line) => [
        line.key, line.rank, line.pinned, line.raw !== null, line.band !== null,
      ]),
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
    this.byKeys = true;
    plot.setCursor({ left: plot.valToPos(x, "x"), top: plot.over.clientHeight / 2 });
    this.byKeys = false;
  }

  hideCursor(): void {
    this.plot?.setCursor({ left: -10, top: -10 });
  }

  resetZoom(): void {
    if (!this.zoomed) return;
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
      const column = this.columns[i] ?? 0;
      const visible = !hidden.has(line.key);
      const first = column - (line.raw === null ? 0 : 1);
      const last = column + (line.band === null ? 0 : 2);
      for (let c = first; c <= last; c++) {
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
      const { stroke, dash, width, fill } = lineStyle(line, options.theme);
      if (line.raw !== null) {
        series.push({ stroke: `${stroke}48`, width: 1, points: { show: false } });
      }
      const points = line.raw === null ? { size: 4, fill: stroke } : { show: false };
      series.push({ stroke, dash: [...dash], width, points });
      if (line.band === null) continue;
      const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
      const lo = series.length;
      series.push(edge, { ...edge });
      bands.push({ series: [lo + 1, lo], fill });
    }
    const axis = { stroke: text, font, grid, ticks: { ...grid, size: 4 }, gap: 4 };

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
          // Points on lines only: edges of bands and raw values are background.
          points: { size: (_, i) => (this.columns.includes(i) ? 6 : 0) },
          drag: { x: true, y: false, dist: 5 },
          sync: { key: this.group, setSeries: false, scales: ["x", null] },
          bind: {
            dblclick: () => () => {
              this.events.onReset();
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
            ...axis,
            size: 24,
            space: 70,
            ...(options.x === "epoch"
              ? {}
              : { incrs: options.x === "step" ? STEP_INCREMENTS : TIME_INCREMENTS }),
            values: (_, splits) => splits.map((at) => X_LABELS[options.x](at)),
          },
          {
            ...axis,
            size: (_, labels) => labelWidth(labels ?? []),
            space: 34,
            values: (_, splits) => splits.map((at) => (at === null ? "" : formatValue(at))),
          },
        ],
        hooks: {
          setCursor: [(plot) => this.tellPointed(plot)],
          setSelect: [(plot) => this.setZoomed(this.zoomed || plot.select.width > 0)],
          draw: [(plot) => this.drawMarks(plot, options.theme)],
        },
      },
      table,
      this.root,
    );
  }

  private tellPointed(plot: uPlot): void {
    const { idx, left = -1, event } = plot.cursor;
    if (idx === null || idx === undefined || left < 0 || plot.data[0]?.[idx] === undefined) {
      this.events.onPoint(null);
      return;
    }
    const at = new Map<string, number>();
    this.lines.forEach((line, i) => {
      const index = plot.cursor.idxs?.[this.columns[i] ?? 0];
      if (index !== null && index !== undefined) at.set(line.key, index);
    });
    const here = this.byKeys || (event ?? null) !== null;
    this.events.onPoint({ index: idx, at, left: left + plot.over.offsetLeft, here });
  }

  /** A cross where a line has a gap since its value is no number: low NaN and −∞, high ∞. */
  private drawMarks(plot: uPlot, theme: Theme): void {
    const { ctx, bbox } = plot;
    const size = MARK_SIZE * uPlot.pxRatio;
    let left = MAX_MARKS;
    ctx.save();
    ctx.lineWidth = 1.5 * uPlot.pxRatio;
    this.lines.forEach((line, i) => {
      if (line.odd.size === 0 || plot.series[this.columns[i] ?? 0]?.show === false) return;
      ctx.strokeStyle = lineStyle(line, theme).stroke;
      ctx.beginPath();
      let before = Number.NEGATIVE_INFINITY;
      for (const [index, value] of line.odd) {
        const x = plot.valToPos(plot.data[0]?.[index] ?? 0, "x", true);
        // Marks that would touch are one.
        if (x < bbox.left || x > bbox.left + bbox.width || x - before < 2 * size) continue;
        if (left-- <= 0) break;
        before = x;
        const y = value > 0 ? bbox.top + 2 * size : bbox.top + bbox.height - 2 * size;
        ctx.moveTo(x - size, y - size);
        ctx.lineTo(x + size, y + size);
        ctx.moveTo(x - size, y + size);
        ctx.lineTo(x + size, y - size);
      }
      ctx.stroke();
    });
    ctx.restore();
  }
}

/** An x as a person reads it. */
const X_LABELS: Record<XAxis, (at: number) => string> = {
  step: (at) => formatStep(at),
  epoch: (at) => String(Number(at.toFixed(3))),
  time: (at) => formatDuration(at),
};

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
