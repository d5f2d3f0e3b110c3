/** The metric against each parameter: a small chart a parameter, a mark a trial. */
import type { Context, View } from "../context";
import { h, setAttr, setText, setTitle, show } from "../dom";
import { Layers } from "../layers";
import type { Changed, PanelState } from "../model";
import { inkOf, Plane } from "../plane";
import type { Trial } from "../search_wire";
import type { TrialAxis } from "../trial_axes";
import { lookOf, PALETTES } from "../trial_look";
import { pointTrials } from "../trial_pointer";
import { trialTooltip, type TrialTooltip } from "../trial_tooltip";
import type { Scene } from "../trials_shown";

const HEIGHT = 170;
/** Parameters with a chart; all have an axis above. */
const MAX_CHARTS = 12;
const MARGIN = { left: 52, right: 10, top: 8, bottom: 22 };
/** Room inside the axes, so that no mark is cut. */
const PADDING = 6;
const NEAR = 12;
const [MARKS, MARKED] = [0, 1];

export function mount(root: HTMLElement, ctx: Context): View {
  const title = h("span", { class: "rn-key" });
  const grid = h("div", { class: "rn-cards rn-scatters" });
  root.append(h("div", { class: "rn-toolbar" }, title), grid);

  const charts = new Map<string, ScatterChart>();
  let latest: PanelState | null = null;

  function update(state: PanelState, changed: Changed): void {
    latest = state;
    if (changed.trials || changed.run || changed.choice) redraw();
    else if (changed.pointed) for (const chart of charts.values()) chart.mark();
  }

  function redraw(): void {
    const scene = latest === null ? null : ctx.trials.scene(latest);
    const goal = scene?.goal ?? null;
    show(root, scene !== null && goal !== null);
    if (scene === null || goal === null) return;
    setText(title, `best ${goal.label} against each parameter`);
    const axes = scene.axes.filter((axis) => !axis.goal).slice(0, MAX_CHARTS);
    for (const [key, chart] of charts) {
      if (axes.some((axis) => axis.key === key)) continue;
      chart.destroy();
      charts.delete(key);
    }
    axes.forEach((axis, i) => {
      let chart = charts.get(axis.key);
      if (chart === undefined) charts.set(axis.key, (chart = new ScatterChart(ctx, redraw)));
      if (grid.children[i] !== chart.node) grid.insertBefore(chart.node, grid.children[i] ?? null);
      chart.draw(axis, goal, scene);
    });
  }

  return {
    update,
    destroy() {
      for (const chart of charts.values()) chart.destroy();
    },
  };
}

interface Mark {
  trial: Trial;
  x: number;
  y: number;
}

class ScatterChart {
  readonly node: HTMLElement;
  private readonly name = h("h4", { class: "rn-card-name" });
  private readonly layers: Layers;
  private readonly tooltip: TrialTooltip = trialTooltip();
  private marks: Mark[] = [];
  private scene: Scene | null = null;

  constructor(
    private readonly ctx: Context,
    onResize: () => void,
  ) {
    this.layers = new Layers(2, HEIGHT, onResize);
    this.node = h(
      "article",
      { class: "rn-card" },
      h("div", { class: "rn-card-head" }, this.name),
      h("div", { class: "rn-plot-box" }, this.layers.node, this.tooltip.node),
    );
    pointTrials(this.layers, ctx, (x, y) => this.nearest(x, y), () => this.scene);
  }

  draw(axis: TrialAxis, goal: TrialAxis, scene: Scene): void {
    this.scene = scene;
    setText(this.name, axis.label);
    setTitle(this.name, axis.title);
    const { layers } = this;
    const box = {
      left: MARGIN.left,
      top: MARGIN.top,
      width: Math.max(30, layers.width - MARGIN.left - MARGIN.right),
      height: layers.height - MARGIN.top - MARGIN.bottom,
    };
    const inner = {
      left: box.left + PADDING,
      top: box.top + PADDING,
      width: box.width - 2 * PADDING,
      height: box.height - 2 * PADDING,
    };
    const plane = new Plane(inner, axis.scale, goal.scale);
    this.marks = scene.trials.flatMap((trial) => markOf(trial, axis, goal, plane));
    layers.draw(MARKS, (canvas) => {
      plane.drawAxes(canvas, inkOf(this.node), { x: 62, y: 24 });
      paintMarks(canvas, this.marks, scene, this.ctx);
    });
    const shown = this.marks.filter(({ trial }) => scene.isShown(trial.trial)).length;
    setAttr(layers.node, "aria-label", `Best ${goal.label} against ${axis.label} of ${shown} trials`);
    this.mark();
  }

  /** Draws what stands out. */
  mark(): void {
    const { pointed, selected } = this.ctx.trials;
    const palette = PALETTES[this.ctx.theme()];
    const ink = inkOf(this.node);
    const find = (trial: number | null): Mark | undefined => this.marks.find((one) => one.trial.trial === trial);
    this.layers.draw(MARKED, (canvas) => {
      const rings = [
        { mark: find(this.scene?.best ?? null), colour: palette.best, radius: 4.5 },
        { mark: find(selected), colour: palette.selected, radius: 5.5 },
        { mark: find(pointed), colour: palette.pointed, radius: 5.5 },
      ];
      for (const { mark, colour, radius } of rings) {
        if (mark === undefined) continue;
        canvas.beginPath();
        canvas.arc(mark.x, mark.y, radius, 0, 2 * Math.PI);
        canvas.lineWidth = 4.5;
        canvas.strokeStyle = ink.background;
        canvas.stroke();
        canvas.lineWidth = 2.25;
        canvas.strokeStyle = colour;
        canvas.stroke();
      }
    });
    const mark = find(pointed);
    if (mark === undefined || this.scene === null || !this.layers.node.matches(":hover, :focus")) this.tooltip.hide();
    else this.tooltip.show(mark.x, this.layers.width, mark.trial, this.scene);
  }

  destroy(): void {
    this.layers.destroy();
    this.node.remove();
  }

  private nearest(x: number, y: number): number | null {
    let [found, least]: [number | null, number] = [null, NEAR ** 2];
    for (const { trial, x: left, y: top } of this.marks) {
      if (this.scene?.isShown(trial.trial) !== true) continue;
      const distance = (left - x) ** 2 + (top - y) ** 2;
      if (distance < least) [found, least] = [trial.trial, distance];
    }
    return found;
  }
}

function markOf(trial: Trial, axis: TrialAxis, goal: TrialAxis, plane: Plane): Mark[] {
  const [at, best] = [axis.coordinate(trial), goal.coordinate(trial)];
  if (at === null || best === null) return [];
  // Within a category trials are side by side, always in the same place.
  const spread = axis.scale.kind === "category" ? (((trial.trial * 0.618) % 1) - 0.5) * 0.5 : 0;
  const { left, width, top, height } = plane.box;
  const [x, y] = [plane.left(at + spread), plane.top(best)];
  if (Number.isNaN(x) || Number.isNaN(y)) return [];
  return [{ trial, x: Math.min(left + width, Math.max(left, x)), y: Math.min(top + height, Math.max(top, y)) }];
}

/** Filled: over; a ring: still going on; a cross: failed; small and grey: pruned. */
function paintMarks(canvas: CanvasRenderingContext2D, marks: readonly Mark[], scene: Scene, ctx: Context): void {
  const { quality, isShown } = scene;
  const theme = ctx.theme();
  const order = ({ trial }: Mark): number => (trial.state === "pruned" ? -1 : (quality.get(trial.trial) ?? 0));
  for (const { trial, x, y } of [...marks].sort((a, b) => order(a) - order(b))) {
    const { stroke, alpha } = lookOf(trial, quality.get(trial.trial), theme);
    canvas.globalAlpha = isShown(trial.trial) ? Math.max(alpha, trial.state === "pruned" ? 0.5 : 0.85) : 0.1;
    canvas.strokeStyle = canvas.fillStyle = stroke;
    canvas.lineWidth = 1.5;
    canvas.beginPath();
    if (trial.state === "failed") {
      canvas.moveTo(x - 3, y - 3);
      canvas.lineTo(x + 3, y + 3);
      canvas.moveTo(x - 3, y + 3);
      canvas.lineTo(x + 3, y - 3);
      canvas.stroke();
    } else {
      canvas.arc(x, y, trial.state === "pruned" ? 2 : 3, 0, 2 * Math.PI);
      if (trial.state === "running" || trial.state === "paused") canvas.stroke();
      else canvas.fill();
    }
  }
}
