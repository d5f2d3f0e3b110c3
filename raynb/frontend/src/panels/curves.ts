/**
 * The learning curves of all trials on one chart.
 *
 * Three layers: the curves of trials that are over, which seldom change; those
 * of trials that go on; and the ones that stand out: best, selected, pointed at.
 */
import type { Context, View } from "../context";
import { h, setAttr, setOptions, setText, show, uniqueId } from "../dom";
import { formatCount, formatDuration, formatValue } from "../format";
import { Layers } from "../layers";
import type { Changed, PanelState } from "../model";
import { inkOf, Plane, type Ink } from "../plane";
import { extentOf, linearScale, logScale, niceStep, type Extent } from "../scales";
import type { Series } from "../series";
import type { Trial } from "../search_wire";
import { isOpen, lookOf, PALETTES } from "../trial_look";
import { trialTooltip } from "../trial_tooltip";
import type { Scene } from "../trials_shown";

const HEIGHT = 250;
const [OVER, OPEN, MARKED] = [0, 1, 2];
/** Pixels from the pointer to a curve that it means. */
const NEAR = 24;
const MARGIN = { left: 58, right: 14, top: 10, bottom: 24 };

/** One trial's curve, in values. */
interface Curve {
  trial: Trial;
  x: Float64Array;
  y: Float64Array;
}

export function mount(root: HTMLElement, ctx: Context): View {
  const { choices, trials } = ctx;
  const metricId = uniqueId("curve-metric");
  const metricSelect = h("select", { attrs: { id: metricId, "data-lm-suppress-shortcuts": "true" } });
  const axis = h("button", { class: "rn-toggle", text: "by time", title: "Time since each trial began, not its iterations", attrs: { type: "button" } });
  const log = h("button", { class: "rn-toggle", text: "log y", attrs: { type: "button" } });
  const note = h("span", { class: "rn-note" });
  const tooltip = trialTooltip();
  const layers = new Layers(3, HEIGHT, () => redraw(true));
  layers.node.classList.add("rn-curves");
  const empty = h("div", { class: "rn-empty", text: "No curves yet: they come with the first reports." });
  const toolbar = h(
    "div",
    { class: "rn-toolbar" },
    h("label", { class: "rn-key", text: "learning curves", attrs: { for: metricId } }),
    metricSelect,
    axis,
    log,
    note,
    curveLegend(),
  );
  const plot = h("div", { class: "rn-plot-box" }, layers.node, tooltip.node);
  root.append(toolbar, plot, empty);

  let latest: PanelState | null = null;
  let scene: Scene | null = null;
  let curves: Curve[] = [];
  let plane: Plane | null = null;
  let metric = "";
  /** What the layer of trials that are over shows. */
  let settled = "";

  metricSelect.addEventListener("change", () => {
    choices.metrics = [metricSelect.value];
    ctx.chose();
  });
  axis.addEventListener("click", () => {
    choices.x = choices.x === "time" ? "step" : "time";
    ctx.chose();
  });
  log.addEventListener("click", () => {
    choices.log = !choices.log;
    ctx.chose();
  });
  layers.node.addEventListener("pointermove", (event) => ctx.point(nearest(...layers.place(event))));
  layers.node.addEventListener("pointerleave", () => ctx.point(null));
  layers.node.addEventListener("click", () => {
    trials.selected = trials.pointed === trials.selected ? null : trials.pointed;
    ctx.chose();
  });
  layers.node.addEventListener("keydown", (event) => {
    if (!stepThrough(event, ctx, scene)) return;
    event.preventDefault();
    event.stopPropagation();
  });

  function update(state: PanelState, changed: Changed): void {
    latest = state;
    const data = changed.series || changed.trials || changed.run || changed.choice;
    if (data) redraw(changed.choice);
    else if (changed.pointed) drawMarked();
  }

  function redraw(whole: boolean): void {
    if (latest === null) return;
    scene = trials.scene(latest);
    if (scene === null) return;
    const { search } = scene;
    const names = [...new Set([...(search.metric === null ? [] : [search.metric]), ...latest.series.keys()])];
    metric = choices.metrics?.find((name) => names.includes(name)) ?? names[0] ?? "";
    setOptions(metricSelect, names.map((name) => ({ value: name, label: name })), metric);
    setAttr(axis, "aria-pressed", String(choices.x === "time"));
    setAttr(log, "aria-pressed", String(choices.log));
    curves = curvesOf(latest, scene, metric, choices.x === "time");
    const any = curves.length > 0;
    show(plot, any);
    show(empty, !any);
    if (!any) return;
    const planned = planeOf(curves, scene, choices.x === "time", choices.log, layers);
    plane = planned.plane;
    setText(note, planned.note);
    if (whole) settled = "";
    drawSettled();
    layers.draw(OPEN, (canvas) => paintCurves(canvas, curves.filter(({ trial }) => isOpen(trial))));
    drawMarked();
    setAttr(layers.node, "aria-label", labelOf(scene, metric, curves.length));
  }

  function drawSettled(): void {
    if (plane === null || scene === null) return;
    const { x, y, box } = plane;
    const over = curves.filter(({ trial }) => !isOpen(trial));
    const key = JSON.stringify([
      metric, x.kind, x.low, x.high, y.kind, y.low, y.high, box, ctx.theme(), trials.filter,
      [...trials.brushes], over.map(({ trial, x: points }) => [trial.trial, points.length]),
    ]);
    if (key === settled) return;
    settled = key;
    layers.draw(OVER, (canvas) => {
      plane?.drawAxes(canvas, inkOf(root), { x: 80, y: 34 });
      paintCurves(canvas, over);
    });
  }

  /** From the faintest to the strongest, so that good ones are on top. */
  function paintCurves(canvas: CanvasRenderingContext2D, list: readonly Curve[]): void {
    if (plane === null || scene === null) return;
    const { quality } = scene;
    const theme = ctx.theme();
    plane.clip(canvas);
    canvas.lineJoin = "round";
    const order = (trial: Trial): number => (trial.state === "pruned" ? -1 : (quality.get(trial.trial) ?? 0));
    for (const curve of [...list].sort((a, b) => order(a.trial) - order(b.trial))) {
      const { stroke, alpha, width } = lookOf(curve.trial, quality.get(curve.trial.trial), theme);
      canvas.globalAlpha = alpha;
      canvas.strokeStyle = stroke;
      canvas.lineWidth = width;
      trace(canvas, curve, plane);
      canvas.stroke();
      if (curve.trial.state === "failed") cross(canvas, curve, plane);
    }
  }

  function drawMarked(): void {
    const { pointed, selected } = trials;
    const palette = PALETTES[ctx.theme()];
    layers.draw(MARKED, (canvas) => {
      if (plane === null || scene === null) return;
      plane.clip(canvas, 4);
      const ink = inkOf(root);
      const marks = [
        { trial: scene.best, stroke: palette.best, width: 2.5, star: true },
        { trial: selected, stroke: palette.selected, width: 3, star: false },
        { trial: pointed, stroke: palette.pointed, width: 2, star: false },
      ];
      for (const { trial, stroke, width, star } of marks) {
        const curve = curves.find((one) => one.trial.trial === trial);
        if (curve === undefined) continue;
        // Off the others by a line of the page's colour around it.
        for (const [colour, wide] of [[ink.background, width + 2.5], [stroke, width]] as const) {
          canvas.strokeStyle = colour;
          canvas.lineWidth = wide;
          trace(canvas, curve, plane);
          canvas.stroke();
        }
        if (star) markBest(canvas, curve, plane, stroke, ink);
      }
    });
    showTooltip();
  }

  function showTooltip(): void {
    const curve = curves.find((one) => one.trial.trial === trials.pointed);
    const index = curve === undefined ? -1 : curve.x.length - 1;
    if (curve === undefined || plane === null || scene === null || !layers.node.matches(":hover, :focus")) {
      tooltip.hide();
      return;
    }
    const at = pointedAt !== null && pointedAt.trial === curve.trial.trial ? pointedAt.index : index;
    const where = choices.x === "time" ? formatDuration(curve.x[at] ?? 0) : `iteration ${formatCount(curve.x[at] ?? 0)}`;
    tooltip.show(plane.left(curve.x[at] ?? 0), layers.width, curve.trial, scene, [[`${metric}, ${where}`, formatValue(curve.y[at] ?? null)]]);
  }

  /** The point of a curve that is nearest to the pointer. */
  let pointedAt: { trial: number; index: number } | null = null;

  function nearest(x: number, y: number): number | null {
    pointedAt = null;
    if (plane === null || !plane.holds(x, y, 6)) return null;
    let least = NEAR ** 2;
    const wanted = plane.x.value((x - plane.box.left) / plane.box.width);
    for (const curve of curves) {
      const near = indexAt(curve.x, wanted);
      for (let index = Math.max(0, near - 1); index <= Math.min(curve.x.length - 1, near + 1); index++) {
        const distance = (plane.left(curve.x[index] ?? 0) - x) ** 2 + (plane.top(curve.y[index] ?? 0) - y) ** 2;
        if (distance < least) {
          least = distance;
          pointedAt = { trial: curve.trial.trial, index };
        }
      }
    }
    const found = pointedAt as { trial: number; index: number } | null;
    return found?.trial ?? null;
  }

  return {
    update,
    destroy: () => layers.destroy(),
  };
}

function curveLegend(): HTMLElement {
  const entry = (look: string, text: string): HTMLElement =>
    h("span", {}, h("i", { class: `rn-look rn-look-${look}` }), text);
  return h(
    "span",
    { class: "rn-parts-legend" },
    entry("best", "best"),
    h("span", {}, "worse", h("i", { class: "rn-look rn-look-ramp" }), "better"),
    entry("pruned", "pruned"),
    entry("failed", "failed"),
  );
}

function curvesOf(state: PanelState, { shown }: Scene, metric: string, byTime: boolean): Curve[] {
  const series = state.series.get(metric);
  if (series === undefined) return [];
  const began = state.run?.started ?? 0;
  return shown.flatMap((trial) => {
    const own = series.get(trial.trial)?.at(-1);
    if (own === undefined || own.length === 0) return [];
    return [{ trial, x: byTime ? timesOf(own, trial, began) : own.column("step"), y: own.column("last") }];
  });
}

/** Seconds since the trial began; where that is not known, since its first result. */
function timesOf(series: Series, { started }: Trial, began: number): Float64Array {
  const times = series.column("time");
  const from = started === null ? (times[0] ?? 0) : started - began;
  return times.map((time) => time - from);
}

function planeOf(
  curves: readonly Curve[],
  { search }: Scene,
  byTime: boolean,
  wantsLog: boolean,
  { width, height }: Layers,
): { plane: Plane; note: string } {
  let [xLow, xHigh] = [byTime ? 0 : Number.POSITIVE_INFINITY, 1];
  for (const { x } of curves) {
    xLow = Math.min(xLow, x[0] ?? xLow);
    xHigh = Math.max(xHigh, x[x.length - 1] ?? xHigh);
  }
  const extent = yExtent(curves) ?? { low: 0, high: 1, outside: 0 };
  // Out to the next round number: an axis that moves with every report would have all drawn anew.
  const step = niceStep(Math.max(1e-9, xHigh - xLow) / 6, !byTime);
  xHigh = xLow + Math.ceil((xHigh - xLow) / step - 1e-9) * step;
  const box = {
    left: MARGIN.left,
    top: MARGIN.top,
    width: Math.max(50, width - MARGIN.left - MARGIN.right),
    height: height - MARGIN.top - MARGIN.bottom,
  };
  const log = wantsLog && extent.low > 0;
  const x = linearScale(xLow, xHigh, byTime ? formatDuration : formatCount, !byTime);
  const y = log ? logScale(...roundedLog(extent)) : linearScale(...rounded(extent));
  const notes = [
    extent.outside > 0 ? `${formatCount(extent.outside)} curves go further than the chart` : "",
    wantsLog && !log ? "no logarithm of values that are not positive" : "",
    search.mode === null ? "" : search.mode === "min" ? "lower is better" : "higher is better",
  ];
  return { plane: new Plane(box, x, y), note: notes.filter((one) => one !== "").join(" · ") };
}

/** By the curves' own smallest and largest values: one that diverges does not flatten the rest. */
function yExtent(curves: readonly Curve[]): Extent | null {
  const [lows, highs]: [number[], number[]] = [[], []];
  for (const { y } of curves) {
    let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    for (const value of y) {
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) continue;
    lows.push(low);
    highs.push(high);
  }
  const [down, up] = [extentOf(lows), extentOf(highs)];
  if (down === null || up === null) return null;
  return { low: Math.min(down.low, up.low), high: Math.max(down.high, up.high), outside: down.outside + up.outside };
}

function rounded({ low, high }: Extent): [number, number] {
  const room = (high - low) * 0.04;
  const step = niceStep((high - low || Math.abs(high) || 1) / 20);
  return [Math.floor((low - room) / step) * step, Math.ceil((high + room) / step) * step];
}

function roundedLog({ low, high }: Extent): [number, number] {
  const digit = (value: number, to: (ratio: number) => number): number => {
    const power = 10 ** Math.floor(Math.log10(value));
    return Number((to(value / power) * power).toPrecision(1));
  };
  return [digit(low * 0.97, Math.floor), digit(high * 1.03, Math.ceil)];
}

/** A value that is no number is a gap. */
function trace(canvas: CanvasRenderingContext2D, { x, y }: Curve, plane: Plane): void {
  canvas.beginPath();
  let drawn = 0;
  for (let i = 0; i < x.length; i++) {
    const [px, py] = [plane.left(x[i] ?? 0), plane.top(y[i] ?? Number.NaN)];
    if (!Number.isFinite(py)) {
      drawn = 0;
      continue;
    }
    if (drawn === 0) canvas.moveTo(px, py);
    else canvas.lineTo(px, py);
    drawn += 1;
    // A point alone has no line: a short stroke shows it.
    if (drawn === 1 && !Number.isFinite(plane.top(y[i + 1] ?? Number.NaN))) {
      canvas.moveTo(px - 1.5, py);
      canvas.lineTo(px + 1.5, py);
    }
  }
}

function cross(canvas: CanvasRenderingContext2D, { x, y }: Curve, plane: Plane): void {
  const last = x.length - 1;
  const [px, py] = [plane.left(x[last] ?? 0), plane.top(y[last] ?? Number.NaN)];
  if (!Number.isFinite(py)) return;
  canvas.globalAlpha = 1;
  canvas.lineWidth = 1.5;
  canvas.beginPath();
  canvas.moveTo(px - 3, py - 3);
  canvas.lineTo(px + 3, py + 3);
  canvas.moveTo(px - 3, py + 3);
  canvas.lineTo(px + 3, py - 3);
  canvas.stroke();
}

/** A ring where the best value is, and whose curve it is. */
function markBest(canvas: CanvasRenderingContext2D, { trial, x, y }: Curve, plane: Plane, colour: string, ink: Ink): void {
  const at = trial.best_step === null ? x.length - 1 : indexOfBest(y, trial.best ?? Number.NaN);
  const [px, py] = [plane.left(x[at] ?? 0), plane.top(y[at] ?? Number.NaN)];
  if (!Number.isFinite(py)) return;
  canvas.beginPath();
  canvas.arc(px, py, 4.5, 0, 2 * Math.PI);
  canvas.fillStyle = ink.background;
  canvas.fill();
  canvas.strokeStyle = colour;
  canvas.lineWidth = 2.5;
  canvas.stroke();
  const words = `trial ${trial.trial}`;
  canvas.font = `600 11px ${ink.font}`;
  const { left, width, top, height } = plane.box;
  const toRight = px + canvas.measureText(words).width + 12 < left + width;
  canvas.textAlign = toRight ? "left" : "right";
  canvas.textBaseline = "middle";
  const [tx, ty] = [px + (toRight ? 9 : -9), Math.min(top + height - 8, py < top + 20 ? py + 14 : py - 13)];
  const wide = canvas.measureText(words).width + 6;
  canvas.globalAlpha = 0.85;
  canvas.fillStyle = ink.background;
  canvas.fillRect(toRight ? tx - 3 : tx + 3 - wide, ty - 8, wide, 16);
  canvas.globalAlpha = 1;
  canvas.fillStyle = colour;
  canvas.fillText(words, tx, ty);
}

/** The curve may be of another metric, and then its end is marked. */
function indexOfBest(y: Float64Array, best: number): number {
  const found = y.indexOf(best);
  return found >= 0 ? found : y.length - 1;
}

/** The last index whose x is not past the wanted one. */
function indexAt(x: Float64Array, wanted: number): number {
  let [low, high] = [0, x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((x[middle] ?? 0) <= wanted) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

function labelOf({ search, trials, best }: Scene, metric: string, drawn: number): string {
  const top = best === null || search.best === null ? "" : `; best so far trial ${best}, ${formatValue(search.best.value)}`;
  return `${metric} of ${drawn} of ${trials.length} trials${top}. Up and down go from trial to trial by their best value, Enter selects one.`;
}

/** By keys from trial to trial, best first; whether the key was one of ours. */
export function stepThrough(event: KeyboardEvent, ctx: Context, scene: Scene | null): boolean {
  if (scene === null) return false;
  const { trials } = ctx;
  if (event.key === "Enter" && trials.pointed !== null) {
    trials.selected = trials.pointed;
    ctx.chose();
    return true;
  }
  if (event.key === "Escape") {
    trials.selected = null;
    ctx.point(null);
    ctx.chose();
    return true;
  }
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by === undefined) return false;
  const ranked = [...scene.shown].sort(
    (a, b) => (scene.quality.get(b.trial) ?? -1) - (scene.quality.get(a.trial) ?? -1) || a.trial - b.trial,
  );
  const at = ranked.findIndex(({ trial }) => trial === trials.pointed);
  const next = ranked[at < 0 ? 0 : Math.min(ranked.length - 1, Math.max(0, at + by))];
  ctx.point(next?.trial ?? null);
  return true;
}

