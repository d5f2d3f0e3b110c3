/** One metric: its name and newest values, its chart, and the values under the pointer. */
import { Chart, type Pointed } from "../chart";
import type { Choices } from "../choices";
import { h, setAttr, setText, setTitle, show } from "../dom";
import { formatCount, formatDuration, formatValue, plural } from "../format";
import { icon } from "../icons";
import { lineStyle } from "../palette";
import { worstFirst, type PlotData, type PlotLine, type XAxis } from "../plot_data";
import type { Theme } from "../theme";
import { Tooltip, type TooltipRow } from "../tooltip";

/** Values in one tooltip; the worst come first. */
const MAX_VALUES = 12;
/** Values that are read aloud when the pointer moves by keys. */
const MAX_SPOKEN = 4;

export interface CardEvents {
  onZoom(zoomed: boolean): void;
  onReset(): void;
  /** The reader no longer wants this metric; null where it is the only one. */
  onClose: (() => void) | null;
}

interface Value {
  line: PlotLine;
  /** An end of the line's band, not of the line. */
  edge: boolean;
  label: string;
  value: number;
  /** Beside the value: as it came, where it is smoothed. */
  more: string;
}

export class ChartCard {
  readonly node: HTMLElement;
  private readonly name = h("h4", { class: "rn-card-name" });
  private readonly newest = h("span", { class: "rn-card-newest" });
  private readonly close = h(
    "button",
    { class: "rn-card-close", attrs: { type: "button" } },
    icon("cross"),
  );
  private readonly plot = h("div", {
    class: "rn-plot",
    attrs: { tabindex: "0", role: "img", "data-lm-suppress-shortcuts": "true" },
  });
  private readonly tooltip = new Tooltip();
  private readonly note = h("div", { class: "rn-note" });
  private readonly spoken = h("div", { class: "rn-aloud", attrs: { "aria-live": "polite" } });
  private readonly chart: Chart;
  private data: PlotData | null = null;
  private pointed: Pointed | null = null;
  private byKeys = false;
  private x: XAxis = "step";
  private theme: Theme = "light";
  private hidden: ReadonlySet<string> = new Set();

  constructor(
    readonly metric: string,
    group: string,
    private readonly events: CardEvents,
  ) {
    setText(this.name, metric);
    setTitle(this.name, metric);
    setAttr(this.close, "aria-label", `Close the chart of ${metric}`);
    this.node = h(
      "article",
      { class: "rn-card" },
      h("div", { class: "rn-card-head" }, this.name, this.newest, this.close),
      h("div", { class: "rn-plot-box" }, this.plot, this.tooltip.node),
      this.note,
      this.spoken,
    );
    this.node.dataset["metric"] = metric;
    this.chart = new Chart(this.plot, group, {
      onPoint: (at) => this.point(at),
      onZoom: (zoomed) => this.events.onZoom(zoomed),
      onReset: () => this.events.onReset(),
    });
    this.close.addEventListener("click", () => this.events.onClose?.());
    this.plot.addEventListener("keydown", (event) => this.onKey(event));
    this.plot.addEventListener("blur", () => this.chart.hideCursor());
  }

  draw(data: PlotData, { x, log, hidden }: Choices, theme: Theme): void {
    this.data = data;
    this.x = x;
    this.theme = theme;
    this.hidden = hidden;
    this.chart.draw(data, { x, log, theme, hidden });
    setText(this.newest, newestText(data));
    setText(this.note, noteOf(data));
    setAttr(this.plot, "aria-label", summaryOf(data, x));
    show(this.close, this.events.onClose !== null);
    this.showValues();
  }

  /** Whether the chart can be closed depends on those beside it. */
  setClose(onClose: (() => void) | null): void {
    this.events.onClose = onClose;
    show(this.close, onClose !== null);
  }

  resetZoom(): void {
    this.chart.resetZoom();
  }

  destroy(): void {
    this.chart.destroy();
    this.node.remove();
  }

  private onKey(event: KeyboardEvent): void {
    const moves: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      Home: Number.NEGATIVE_INFINITY,
      End: Number.POSITIVE_INFINITY,
    };
    const by = moves[event.key];
    if (by !== undefined) {
      this.byKeys = true;
      this.chart.moveCursor(by);
    } else if (event.key === "Escape") {
      this.chart.hideCursor();
      this.events.onReset();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private point(at: Pointed | null): void {
    this.pointed = at;
    if (at === null) this.byKeys = false;
    this.showValues();
  }

  private showValues(): void {
    const at = this.pointed;
    const x = at === null ? undefined : this.data?.x[at.index];
    if (at === null || x === undefined || !at.here || this.data === null) {
      this.tooltip.hide();
      setText(this.spoken, "");
      return;
    }
    const values = valuesAt(this.data, at).filter(({ line }) => !this.hidden.has(line.key));
    // The values across ranks lead.
    const across = values.filter(({ line }) => line.kind === "median");
    const own = values.filter(({ line }) => line.kind !== "median");
    const ranked = [...across, ...worstFirst(this.metric, own, ({ value }) => value)];
    const rows = ranked.slice(0, MAX_VALUES).map(
      ({ line, edge, label, value, more }): TooltipRow => ({
        style: edge ? bandStyle(line, this.theme) : lineStyle(line, this.theme),
        label,
        value: `${formatValue(value)}${more}`,
      }),
    );
    const heading = xText(this.x, x);
    const rest = ranked.length - rows.length;
    const box = this.plot.clientWidth;
    this.tooltip.show(at.left, box, heading, rows, rest > 0 ? `and ${plural(rest, "rank")} more` : "");
    const said = rows.slice(0, MAX_SPOKEN).map(({ label, value }) => `${label} ${value}`);
    setText(this.spoken, this.byKeys ? `${heading}: ${said.join(", ")}` : "");
  }
}

function valuesAt({ lines }: PlotData, at: Pointed): Value[] {
  return lines.flatMap((line): Value[] => {
    const index = at.at.get(line.key);
    if (index === undefined) return [];
    const value = line.odd.get(index) ?? line.values[index];
    if (value === null || value === undefined) return [];
    const raw = line.raw?.[index];
    const more = typeof raw === "number" ? `  (raw ${formatValue(raw)})` : "";
    const own = { line, edge: false, label: line.label, value, more };
    if (line.kind !== "median" || line.band === null) return [own];
    const [lo, hi] = [line.band[0][index], line.band[1][index]];
    const edge = (label: string, of: number | null | undefined): Value[] =>
      typeof of === "number" ? [{ line, edge: true, label, value: of, more: "" }] : [];
    return [...edge("largest", hi), { ...own, label: "median" }, ...edge("smallest", lo)];
  });
}

function bandStyle(line: PlotLine, theme: Theme): TooltipRow["style"] {
  return { stroke: lineStyle(line, theme).fill, dash: [], width: 6 };
}

function xText(x: XAxis, at: number): string {
  if (x === "step") return `step ${formatCount(at)}`;
  return x === "epoch" ? `epoch ${at.toFixed(2)}` : `at ${formatDuration(at)}`;
}

/** "0.4722", "0.47 · 0.31 to 0.52": NaN is a value here, a chart leaves a gap for it. */
function newestText({ lines }: PlotData): string {
  const [first] = lines;
  if (first === undefined) return "";
  if (first.kind === "median") {
    const worst = lines.find(({ kind }) => kind === "worst");
    const parts = [`median ${formatValue(first.newest)}`];
    if (worst !== undefined) parts.push(`${worst.label} ${formatValue(worst.newest)}`);
    return parts.join(" · ");
  }
  const values = lines.flatMap(({ newest }) => newest ?? []);
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const [lo, hi] = [sorted[0], sorted.at(-1)];
  if (lo === undefined || hi === undefined) return formatValue(values[0] ?? null);
  const [low, high] = [formatValue(lo), formatValue(hi)];
  return low === high ? low : `${low} to ${high}`;
}

function noteOf(data: PlotData): string {
  const notes: string[] = [];
  if (data.notFinite.length > 0) {
    const shown = data.notFinite.slice(0, 8).join(", ");
    const more = data.notFinite.length > 8 ? ", …" : "";
    const ranks = data.notFinite.length === 1 ? "rank" : "ranks";
    notes.push(`The newest value of ${ranks} ${shown}${more} is not a finite number.`);
  }
  if (data.notPositive) notes.push("Values of 0 or less have no place on a log axis.");
  if (data.left > 0) notes.push(`${plural(data.left, "more rank")} not drawn.`);
  return notes.join(" ");
}

function summaryOf(data: PlotData, x: XAxis): string {
  const banded = data.lines[0]?.kind === "median";
  const what = banded
    ? `median and range of ${plural(data.ranks, "rank")}`
    : data.ranks === 1
      ? "one rank"
      : plural(data.ranks, "rank");
  return `${data.metric} over ${x}, ${what}. Left and right arrow keys read values.`;
}
