/** The charts: a card a metric, with the controls and the legend they share. */
import { shownMetrics, type Context, type View } from "../context";
import { h, setAttr, setText, show, uniqueId } from "../dom";
import type { Changed, PanelState } from "../model";
import { hasEpoch, plotData, type PlotData, type PlotSource, type XAxis } from "../plot_data";
import { ChartCard } from "./chart_card";
import { Legend } from "./legend";
import { MetricPicker } from "./metric_picker";

interface Card {
  card: ChartCard;
  /** What was drawn: of which version of the metric, with which choices. */
  version: number;
  choices: number;
  data: PlotData | null;
}

export function mount(root: HTMLElement, ctx: Context): View {
  const group = uniqueId("charts");
  const { choices } = ctx;
  const picker = new MetricPicker((metrics) => {
    choices.metrics = metrics;
    ctx.chose();
  });
  const axis = axisSwitch((chosen) => {
    choices.x = chosen;
    ctx.chose();
  });
  const log = h("button", { class: "rn-toggle", text: "log y", attrs: { type: "button" } });
  const smooth = smoothSlider((weight) => {
    choices.smooth = weight;
    ctx.chose();
  });
  const pin = pinField((rank) => {
    if (!choices.pinned.has(rank)) ctx.pin(rank);
  });
  const unzoom = h("button", { class: "rn-toggle", text: "reset zoom", attrs: { type: "button" } });
  const empty = h("div", {
    class: "rn-empty",
    text: "No metrics yet: they appear with the first report.",
  });
  const toolbar = h("div", { class: "rn-toolbar" }, axis.node, log, smooth.node, pin.node, unzoom);
  const grid = h("div", { class: "rn-cards" });
  const legend = new Legend(ctx);
  const controls = h("div", { class: "rn-controls" }, picker.node, toolbar);
  const charts = h("div", { class: "rn-charts" }, controls, grid, legend.node);
  root.append(charts, empty);

  const cards = new Map<string, Card>();
  /** Counts the choices made, so that a card knows whether it shows the newest. */
  let choice = 0;

  log.addEventListener("click", () => {
    choices.log = !choices.log;
    ctx.chose();
  });
  unzoom.addEventListener("click", resetZoom);

  function resetZoom(): void {
    for (const { card } of cards.values()) card.resetZoom();
    show(unzoom, false);
  }

  function update(state: PanelState, changed: Changed): void {
    if (!changed.series && !changed.choice && !changed.focus && !changed.run) return;
    if (changed.choice || changed.focus) choice += 1;
    const metrics = shownMetrics(state, choices);
    show(charts, metrics.length > 0);
    show(empty, metrics.length === 0);
    const epochs = metrics.some((name) => hasEpoch(sourceOf(state, name)));
    const shownChoices = { ...choices, x: choices.x === "epoch" && !epochs ? "step" : choices.x } as const;
    showControls(state, metrics, shownChoices.x, epochs);
    for (const [name, { card }] of cards) {
      if (metrics.includes(name)) continue;
      card.destroy();
      cards.delete(name);
    }
    metrics.forEach((name, i) => {
      const shown = cardOf(name);
      if (grid.children[i] !== shown.card.node) {
        grid.insertBefore(shown.card.node, grid.children[i] ?? null);
      }
      shown.card.setClose(metrics.length < 2 ? null : () => {
        choices.metrics = metrics.filter((one) => one !== name);
        ctx.chose();
      });
      const version = state.versions.get(name) ?? 0;
      if (shown.version === version && shown.choices === choice) return;
      shown.version = version;
      shown.choices = choice;
      shown.data = plotData(sourceOf(state, name), shownChoices);
      shown.card.draw(shown.data, shownChoices, ctx.theme());
    });
    legend.update([...cards.values()].flatMap(({ data }) => data?.lines ?? []));
  }

  function showControls(state: PanelState, metrics: string[], x: XAxis, epochs: boolean): void {
    picker.update(state.metrics(), metrics);
    axis.set(x, epochs);
    setAttr(log, "aria-pressed", String(choices.log));
    smooth.set(choices.smooth);
    pin.set(state.run?.detail === "bands", Math.max(0, ...state.workers.keys()));
  }

  function cardOf(name: string): Card {
    let found = cards.get(name);
    if (found === undefined) {
      const card = new ChartCard(name, group, {
        onZoom: (zoomed) => show(unzoom, zoomed),
        onReset: resetZoom,
        onClose: null,
      });
      found = { card, version: -1, choices: -1, data: null };
      cards.set(name, found);
    }
    return found;
  }

  show(unzoom, false);
  return {
    update,
    destroy() {
      for (const { card } of cards.values()) card.destroy();
    },
  };
}

function sourceOf(state: PanelState, metric: string): PlotSource {
  return {
    metric,
    series: state.series.get(metric) ?? new Map(),
    bands: state.bands.get(metric) ?? [],
    worst: state.focus.worst.get(metric) ?? null,
  };
}

function axisSwitch(onChange: (axis: XAxis) => void): {
  node: HTMLElement;
  set(axis: XAxis, epochs: boolean): void;
} {
  const name = uniqueId("axis");
  const node = h("fieldset", { class: "rn-switch" }, h("legend", { text: "x axis" }));
  const inputs = (["step", "epoch", "time"] as const).map((axis) => {
    const input = h("input", { attrs: { type: "radio", name, value: axis } });
    input.setAttribute("data-lm-suppress-shortcuts", "true");
    input.addEventListener("change", () => onChange(axis));
    const label = h("label", {}, input, h("span", { text: axis }));
    node.append(label);
    return { axis, input, label };
  });
  return {
    node,
    set(chosen, epochs) {
      for (const { axis, input, label } of inputs) {
        if (input.checked !== (axis === chosen)) input.checked = axis === chosen;
        const known = axis !== "epoch" || epochs;
        input.disabled = !known;
        label.title = known ? "" : "No epochs known: they come with a data loader that raynb counts.";
      }
    },
  };
}

function smoothSlider(onChange: (weight: number) => void): {
  node: HTMLElement;
  set(weight: number): void;
} {
  const id = uniqueId("smooth");
  const input = h("input", {
    attrs: { id, type: "range", min: "0", max: "0.99", step: "0.01", "data-lm-suppress-shortcuts": "true" },
  });
  const value = h("span", { class: "rn-value" });
  const node = h(
    "span",
    {
      class: "rn-smooth",
      title: "Exponential moving average: the weight of the past. The values as they came stay visible.",
    },
    h("label", { class: "rn-key", text: "smooth", attrs: { for: id } }),
    input,
    value,
  );
  input.addEventListener("input", () => onChange(Number(input.value)));
  return {
    node,
    set(weight) {
      if (Number(input.value) !== weight) input.value = String(weight);
      setText(value, weight === 0 ? "off" : weight.toFixed(2));
    },
  };
}

/** Where there are too many ranks for a line each: a field to ask for one. */
function pinField(onPin: (rank: number) => void): {
  node: HTMLElement;
  set(visible: boolean, last: number): void;
} {
  const id = uniqueId("pin");
  const input = h("input", {
    class: "rn-pin-rank",
    attrs: { id, type: "number", min: "0", step: "1", required: "", "data-lm-suppress-shortcuts": "true" },
  });
  const node = h(
    "form",
    { class: "rn-pin-form" },
    h("label", { class: "rn-key", text: "pin rank", attrs: { for: id } }),
    input,
    h("button", { text: "pin", attrs: { type: "submit" } }),
  );
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    onPin(Number(input.value));
    input.value = "";
  });
  return {
    node,
    set(visible, last) {
      show(node, visible);
      setAttr(input, "max", String(last));
      setAttr(input, "placeholder", `0–${last}`);
    },
  };
}
