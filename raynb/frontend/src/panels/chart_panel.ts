/** The chosen metric over steps or time, with its controls and legend. */
import { Chart, lineStyle, type CursorValues } from "../chart";
import { shownMetric, type Context, type View } from "../context";
import { h, setAttr, setOptions, setText, show, uniqueId } from "../dom";
import { formatCount, formatDuration, formatValue } from "../format";
import { swatch } from "../icons";
import type { Changed, PanelState } from "../model";
import { plotData, type PlotData, type PlotLine, type XAxis } from "../plot_data";
import type { Theme } from "../theme";

interface Chip {
  button: HTMLButtonElement;
  label: HTMLElement;
  value: HTMLElement;
  style: string;
}

export function mount(root: HTMLElement, ctx: Context): View {
  const metricId = uniqueId("metric");
  const metric = h("select", {
    class: "rn-select",
    attrs: { id: metricId, "data-lm-suppress-shortcuts": "true" },
  });
  const axis = axisSwitch((chosen) => {
    xAxis = chosen;
    redraw();
  });
  const log = h("button", {
    class: "rn-toggle",
    text: "log y",
    attrs: { type: "button", "aria-pressed": "false" },
  });
  const pin = h("select", {
    class: "rn-select",
    attrs: { "aria-label": "Pin a rank's own line", "data-lm-suppress-shortcuts": "true" },
  });
  const unzoom = h("button", { class: "rn-toggle", text: "reset zoom", attrs: { type: "button" } });
  const readout = h("span", { class: "rn-readout" });
  const plot = h("div", {
    class: "rn-plot",
    attrs: { tabindex: "0", role: "img", "data-lm-suppress-shortcuts": "true" },
  });
  const empty = h("div", {
    class: "rn-empty",
    text: "No metrics yet: they appear with the first report.",
  });
  const note = h("div", { class: "rn-note", attrs: { role: "status" } });
  const legend = h("div", {
    class: "rn-legend",
    attrs: { role: "group", "aria-label": "Lines of the chart" },
  });
  const toolbar = h(
    "div",
    { class: "rn-toolbar" },
    h("label", { class: "rn-key", text: "metric", attrs: { for: metricId } }),
    metric,
    axis.node,
    log,
    pin,
    unzoom,
    readout,
  );
  root.append(toolbar, plot, empty, note, legend);

  let xAxis: XAxis = "step";
  let logY = false;
  let latest: PanelState | null = null;
  let data: PlotData | null = null;
  let cursor: CursorValues | null = null;
  const hidden = new Set<string>();
  const pinned = new Set<number>();
  const chips = new Map<string, Chip>();
  const chart = new Chart(plot, {
    onCursor(at) {
      cursor = at;
      showValues();
    },
    onZoom(zoomed) {
      show(unzoom, zoomed);
    },
  });
  show(unzoom, false);

  metric.addEventListener("change", () => {
    ctx.choices.metric = metric.value;
    ctx.chose();
  });
  log.addEventListener("click", () => {
    logY = !logY;
    setAttr(log, "aria-pressed", String(logY));
    redraw();
  });
  pin.addEventListener("change", () => {
    const rank = Number(pin.value);
    if (!pinned.delete(rank)) pinned.add(rank);
    redraw();
  });
  unzoom.addEventListener("click", () => {
    chart.resetZoom();
    plot.focus();
  });
  plot.addEventListener("keydown", (event) => {
    const moves: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      Home: Number.NEGATIVE_INFINITY,
      End: Number.POSITIVE_INFINITY,
    };
    const by = moves[event.key];
    if (by !== undefined) chart.moveCursor(by);
    else if (event.key === "Escape") chart.hideCursor();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  plot.addEventListener("blur", () => chart.hideCursor());

  function update(state: PanelState, changed: Changed): void {
    latest = state;
    if (changed.series || changed.choice || (changed.run && data === null)) redraw();
  }

  function redraw(): void {
    if (latest === null) return;
    const state = latest;
    const name = shownMetric(state, ctx.choices);
    show(root, name !== null || state.run !== null);
    show(toolbar, name !== null);
    show(plot, name !== null);
    show(empty, name === null);
    if (name === null) {
      legend.replaceChildren();
      chips.clear();
      setText(note, "");
      return;
    }
    setOptions(metric, state.metrics().map((value) => ({ value, label: value })), name);
    const theme = ctx.theme();
    data = plotData(state.series.get(name) ?? new Map(), { metric: name, x: xAxis, log: logY, pinned });
    chart.draw(data, { x: xAxis, log: logY, theme, hidden });
    show(pin, data.aggregated);
    if (data.aggregated) {
      const ranks = data.ranks.map((rank) => ({
        value: String(rank),
        label: pinned.has(rank) ? `rank ${rank} (unpin)` : `rank ${rank}`,
      }));
      setOptions(pin, [{ value: "", label: "pin a rank…" }, ...ranks], "");
    }
    setText(note, noteOf(data));
    setAttr(plot, "aria-label", summaryOf(name, data, xAxis));
    drawLegend(data.lines, theme);
    showValues();
  }

  function drawLegend(lines: PlotLine[], theme: Theme): void {
    const keys = new Set(lines.map((line) => line.key));
    for (const [key, chip] of chips) {
      if (keys.has(key)) continue;
      chip.button.remove();
      chips.delete(key);
    }
    lines.forEach((line, i) => {
      let chip = chips.get(line.key);
      if (chip === undefined) {
        chip = makeChip(line.key);
        chips.set(line.key, chip);
      }
      if (legend.children[i] !== chip.button) {
        legend.insertBefore(chip.button, legend.children[i] ?? null);
      }
      const { stroke, dash, width } = lineStyle(line, theme);
      const style = JSON.stringify([stroke, dash]);
      if (chip.style !== style) {
        chip.style = style;
        chip.button.querySelector("svg")?.replaceWith(swatch(stroke, dash, width));
      }
      setText(chip.label, line.label);
      setAttr(chip.button, "aria-pressed", String(!hidden.has(line.key)));
    });
  }

  function makeChip(key: string): Chip {
    const label = h("span");
    const value = h("span", { class: "rn-value" });
    const button = h(
      "button",
      { class: "rn-chip", title: "Show or hide this line", attrs: { type: "button" } },
      swatch("currentColor", [], 2),
      label,
      value,
    );
    button.addEventListener("click", () => {
      if (!hidden.delete(key)) hidden.add(key);
      redraw();
    });
    return { button, label, value, style: "" };
  }

  /** The values under the cursor, else the newest. */
  function showValues(): void {
    const at = cursor;
    setText(
      readout,
      at === null
        ? "latest"
        : xAxis === "step"
          ? `step ${formatCount(at.x)}`
          : `at ${formatDuration(at.x)}`,
    );
    for (const line of data?.lines ?? []) {
      const chip = chips.get(line.key);
      if (chip === undefined) continue;
      const value = at === null ? newestOf(line, latest, metric.value) : at.values.get(line.key);
      setText(chip.value, formatValue(value ?? null));
    }
  }

  return { update, destroy: () => chart.destroy() };
}

/** NaN is a value here: a chart leaves a gap for it, the legend says it. */
function newestOf(line: PlotLine, state: PanelState | null, metric: string): number | null {
  if (line.rank !== null) return state?.latest(metric, line.rank) ?? null;
  for (let i = line.values.length - 1; i >= 0; i--) {
    const value = line.values[i];
    if (value !== undefined) return value;
  }
  return null;
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
  return notes.join(" ");
}

function summaryOf(metric: string, data: PlotData, x: XAxis): string {
  const what = data.aggregated
    ? `median and range of ${data.ranks.length} ranks`
    : data.ranks.length === 1
      ? "one rank"
      : `${data.ranks.length} ranks`;
  return `${metric} over ${x}, ${what}. Left and right arrow keys read values.`;
}

function axisSwitch(onChange: (axis: XAxis) => void): { node: HTMLElement } {
  const name = uniqueId("axis");
  const node = h("fieldset", { class: "rn-switch" }, h("legend", { text: "x axis" }));
  for (const axis of ["step", "time"] as const) {
    const input = h("input", { attrs: { type: "radio", name, value: axis } });
    input.checked = axis === "step";
    input.setAttribute("data-lm-suppress-shortcuts", "true");
    input.addEventListener("change", () => onChange(axis));
    node.append(h("label", {}, input, h("span", { text: axis })));
  }
  return { node };
}
