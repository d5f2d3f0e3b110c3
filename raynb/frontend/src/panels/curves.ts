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
import { inkOf, type Ink, type Plane } from "../plane";
import type { Trial } from "../search_wire";
import { curvesOf, indexAt, planeOf, type Curve } from "../trial_curves";
import { isOpen, lookOf, MANY_LINES, PALETTES } from "../trial_look";
import { pointTrials } from "../trial_pointer";
import { trialTooltip } from "../trial_tooltip";
import type { Scene } from "../trials_shown";

const HEIGHT = 250;
const [OVER, OPEN, MARKED] = [0, 1, 2];
/** How long colours of curves that are over may be behind. */
const REPAINT_MS = 3_000;
/** Pixels from the pointer to a curve that it means. */
const NEAR = 24;

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
  /** What the layer of trials that are over shows: on which axes, whose curves, painted anew when. */
  let settled: { key: string; trials: Set<number>; at: number } = { key: "", trials: new Set(), at: 0 };

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
  pointTrials(layers, ctx, nearest, () => scene);

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
    drawSettled(whole);
    layers.draw(OPEN, (canvas) => paintCurves(canvas, curves.filter(({ trial }) => isOpen(trial))));
    drawMarked();
    setAttr(layers.node, "aria-label", labelOf(scene, metric, curves.length));
  }

  /** On the same axes only curves that are new are added; colours follow now and then. */
  function drawSettled(whole: boolean): void {
    if (plane === null) return;
    const { x, y, box } = plane;
    const over = curves.filter(({ trial }) => !isOpen(trial));
    const key = JSON.stringify([metric, x.kind, x.low, x.high, y.kind, y.low, y.high, box, ctx.theme(), choices.x]);
    const fresh = over.filter(({ trial }) => !settled.trials.has(trial.trial));
    const now = performance.now();
    const same = key === settled.key && over.length - fresh.length === settled.trials.size;
    if (!whole && same && (fresh.length === 0 || now - settled.at < REPAINT_MS)) {
      if (fresh.length > 0) layers.draw(OVER, (canvas) => paintCurves(canvas, fresh), false);
      for (const { trial } of fresh) settled.trials.add(trial.trial);
      return;
    }
    settled = { key, trials: new Set(over.map(({ trial }) => trial.trial)), at: now };
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
    const many = curves.length > MANY_LINES;
    canvas.lineJoin = "round";
    const order = (trial: Trial): number => (trial.state === "pruned" ? -1 : (quality.get(trial.trial) ?? 0));
    for (const curve of [...list].sort((a, b) => order(a.trial) - order(b.trial))) {
      const { stroke, alpha, width } = lookOf(curve.trial, quality.get(curve.trial.trial), theme, many);
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
        // Where it is the best one, it shows at both sides of that line.
        { trial: selected, stroke: palette.selected, width: selected === scene.best ? 6 : 3, star: false },
        { trial: scene.best, stroke: palette.best, width: 2.5, star: true },
        { trial: pointed, stroke: palette.pointed, width: 2, star: false },
      ];
      let halo: number | null = null;
      for (const { trial, stroke, width, star } of marks) {
        const curve = curves.find((one) => one.trial.trial === trial);
        if (curve === undefined) continue;
        // Off the others by a line of the page's colour around it.
        for (const [colour, wide] of [[ink.background, width + 2.5], [stroke, width]] as const) {
          if (colour !== stroke && halo === trial) continue;
          halo = trial;
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

function labelOf({ search, trials, best }: Scene, metric: string, drawn: number): string {
  const top = best === null || search.best === null ? "" : `; best so far trial ${best}, ${formatValue(search.best.value)}`;
  return `${metric} of ${drawn} of ${trials.length} trials${top}. Up and down go from trial to trial by their best value, Enter selects one.`;
}
