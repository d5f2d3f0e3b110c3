/**
 * Parallel coordinates: an axis a parameter, the metric last, a line a trial.
 *
 * Dragging along an axis keeps the trials within that range, in every view.
 */
import { dragged, gripAt, nudged, type Drag, type Range } from "../brushing";
import type { Context, View } from "../context";
import { h, setAttr, setText, show } from "../dom";
import { Layers } from "../layers";
import type { Changed, PanelState } from "../model";
import { fitText, inkOf, type Ink } from "../plane";
import type { Trial } from "../search_wire";
import type { TrialAxis } from "../trial_axes";
import { lookOf, MANY_LINES, PALETTES } from "../trial_look";
import { selectPointed, stepThrough } from "../trial_pointer";
import { trialTooltip } from "../trial_tooltip";
import { brushText, type Scene } from "../trials_shown";

const HEIGHT = 300;
const TOP = 34;
const BOTTOM = 16;
/** Room for labels left of the first axis, and right of the last one. */
const SIDE = 62;
/** More axes than fit at this distance make the plot scroll. */
const MIN_GAP = 84;
const [LINES, MARKED, AXES] = [0, 1, 2];
/** Pixels from the pointer to an axis, to a range's end, to a line. */
const NEAR_AXIS = 14;
const NEAR_END = 6;
const NEAR_LINE = 14;
/** A shorter drag is a click, which takes the range away. */
const LEAST = 4;

export function mount(root: HTMLElement, ctx: Context): View {
  const { trials } = ctx;
  const hint = h("span", { class: "rn-note" });
  const clear = h("button", { class: "rn-toggle", text: "show all", attrs: { type: "button" } });
  const tooltip = trialTooltip();
  const layers = new Layers(3, HEIGHT, () => redraw());
  layers.node.classList.add("rn-parallel");
  const scroll = h("div", { class: "rn-parallel-scroll" }, layers.node);
  const plot = h("div", { class: "rn-plot-box" }, scroll, tooltip.node);
  const empty = h("div", { class: "rn-empty", text: "No parameters that differ between trials." });
  root.append(
    h("div", { class: "rn-toolbar" }, h("span", { class: "rn-key", text: "parallel coordinates" }), hint, clear),
    plot,
    empty,
  );

  let latest: PanelState | null = null;
  let scene: Scene | null = null;
  let axes: readonly TrialAxis[] = [];
  let drag: (Drag & { axis: number }) | null = null;
  /** The axis that keys move a range on. */
  let keyed = 0;

  clear.addEventListener("click", () => {
    for (const key of [...trials.brushes.keys()]) trials.brush(key, null);
    ctx.chose();
  });
  listen();

  function update(state: PanelState, changed: Changed): void {
    latest = state;
    if (changed.trials || changed.run || changed.choice) redraw();
    else if (changed.pointed) drawMarked();
  }

  function redraw(): void {
    if (latest === null) return;
    scene = trials.scene(latest);
    axes = scene?.axes ?? [];
    const any = scene !== null && axes.length > 1;
    show(plot, any);
    show(empty, !any);
    show(clear, trials.brushes.size > 0);
    setText(hint, trials.brushes.size > 0 ? "" : "drag along an axis to keep the trials within a range");
    if (!any) return;
    keyed = Math.min(keyed, axes.length - 1);
    const width = `max(100%, ${2 * SIDE + (axes.length - 1) * MIN_GAP}px)`;
    if (layers.node.style.width !== width) layers.node.style.width = width;
    layers.draw(LINES, paintLines);
    layers.draw(AXES, paintAxes);
    drawMarked();
    setAttr(layers.node, "aria-label", labelOf());
  }

  function paintLines(canvas: CanvasRenderingContext2D): void {
    if (scene === null) return;
    const { quality, isShown } = scene;
    const theme = ctx.theme();
    const order = (trial: Trial): number =>
      (isShown(trial.trial) ? 10 : 0) + (trial.state === "pruned" ? -1 : (quality.get(trial.trial) ?? 0));
    canvas.lineJoin = "round";
    for (const trial of [...scene.trials].sort((a, b) => order(a) - order(b))) {
      const { stroke, alpha, width } = lookOf(trial, quality.get(trial.trial), theme, scene.trials.length > MANY_LINES);
      const shown = isShown(trial.trial);
      canvas.strokeStyle = shown ? stroke : PALETTES[theme].pruned;
      canvas.globalAlpha = shown ? alpha : 0.08;
      canvas.lineWidth = width;
      trace(canvas, trial);
      canvas.stroke();
    }
  }

  function paintAxes(canvas: CanvasRenderingContext2D): void {
    const ink = inkOf(root);
    const accent = PALETTES[ctx.theme()].selected;
    axes.forEach((axis, i) => {
      const x = Math.round(leftOf(i)) + 0.5;
      canvas.font = `600 11px ${ink.font}`;
      canvas.textAlign = "center";
      canvas.textBaseline = "alphabetic";
      const gap = axes.length > 1 ? leftOf(1) - leftOf(0) : layers.width;
      halo(canvas, fitText(canvas, axis.label, gap - 8), x, 14, axis.goal ? PALETTES[ctx.theme()].best : ink.strong, ink);
      canvas.strokeStyle = ink.text;
      canvas.lineWidth = 1;
      canvas.beginPath();
      canvas.moveTo(x, TOP);
      canvas.lineTo(x, HEIGHT - BOTTOM);
      const last = i === axes.length - 1;
      canvas.font = `11px ${ink.font}`;
      canvas.textBaseline = "middle";
      canvas.textAlign = last ? "left" : "right";
      const side = last ? 1 : -1;
      let room = Number.POSITIVE_INFINITY;
      const labels: [string, number][] = [];
      for (const { at, label } of axis.scale.ticks(5)) {
        const y = Math.round(topOf(at)) + 0.5;
        canvas.moveTo(x, y);
        canvas.lineTo(x + 4 * side, y);
        if (room - y < 12) continue;
        room = y;
        labels.push([label, y]);
      }
      canvas.stroke();
      for (const [label, y] of labels) halo(canvas, fitText(canvas, label, Math.min(SIDE, gap) - 12), x + 7 * side, y, ink.text, ink);
      const range = rangeOf(axis);
      if (range === null) return;
      const [from, to] = [topOf(range[1]), topOf(range[0])];
      canvas.globalAlpha = 0.22;
      canvas.fillStyle = accent;
      canvas.fillRect(x - 7, from, 14, to - from);
      canvas.globalAlpha = 1;
      canvas.strokeStyle = accent;
      canvas.lineWidth = 1.5;
      canvas.strokeRect(x - 7, from, 14, to - from);
      canvas.lineWidth = 3;
      canvas.beginPath();
      for (const y of [from, to]) {
        canvas.moveTo(x - 7, y);
        canvas.lineTo(x + 7, y);
      }
      canvas.stroke();
    });
  }

  function drawMarked(): void {
    layers.draw(MARKED, (canvas) => {
      if (scene === null) return;
      const palette = PALETTES[ctx.theme()];
      const ink = inkOf(root);
      const marks = [
        { trial: trials.selected, stroke: palette.selected, width: trials.selected === scene.best ? 6 : 3 },
        { trial: scene.best, stroke: palette.best, width: 2.5 },
        { trial: trials.pointed, stroke: palette.pointed, width: 2 },
      ];
      let halo: number | null = null;
      for (const { trial: index, stroke, width } of marks) {
        const trial = index === null ? undefined : latest?.trials.get(index);
        // One that is filtered away is marked only while it is pointed at or selected.
        if (trial === undefined || (index === scene.best && !scene.isShown(trial.trial))) continue;
        for (const [colour, wide] of [[ink.background, width + 2], [stroke, width]] as const) {
          if (colour !== stroke && halo === index) continue;
          halo = index;
          canvas.strokeStyle = colour;
          canvas.lineWidth = wide;
          canvas.lineJoin = "round";
          trace(canvas, trial);
          canvas.stroke();
        }
        canvas.fillStyle = stroke;
        axes.forEach((axis, i) => {
          const at = placeOf(axis, trial);
          if (at === null) return;
          canvas.beginPath();
          canvas.arc(leftOf(i), topOf(at), 3, 0, 2 * Math.PI);
          canvas.fill();
        });
      }
    });
    const trial = trials.pointed === null ? undefined : latest?.trials.get(trials.pointed);
    if (trial === undefined || scene === null || drag !== null || !layers.node.matches(":hover, :focus")) tooltip.hide();
    else tooltip.show(pointer - scroll.scrollLeft, scroll.clientWidth || layers.width, trial, scene);
  }

  /** Where a trial has no value the line has a gap. */
  function trace(canvas: CanvasRenderingContext2D, trial: Trial): void {
    canvas.beginPath();
    let joined = false;
    axes.forEach((axis, i) => {
      const at = placeOf(axis, trial);
      if (at === null) joined = false;
      else if (joined) canvas.lineTo(leftOf(i), topOf(at));
      else {
        canvas.moveTo(leftOf(i), topOf(at));
        joined = true;
      }
    });
  }

  function leftOf(axis: number): number {
    return SIDE + (axis * (layers.width - 2 * SIDE)) / Math.max(1, axes.length - 1);
  }

  function rangeOf(axis: TrialAxis): Range | null {
    const brush = trials.brushes.get(axis.key);
    if (brush === undefined) return null;
    const [from, to] = brush.map((end) => (Number.isFinite(end) ? clampPlace(axis.scale.place(end)) : end < 0 ? 0 : 1));
    return [from ?? 0, to ?? 1];
  }

  function setRange(axis: TrialAxis, range: Range | null): void {
    trials.brush(axis.key, range === null ? null : [valueAt(axis, range[0], -1), valueAt(axis, range[1], 1)]);
    ctx.chose();
  }

  let pointer = 0;

  function listen(): void {
    const { node } = layers;
    const place = (y: number): number => 1 - (y - TOP) / (HEIGHT - TOP - BOTTOM);
    const least = LEAST / (HEIGHT - TOP - BOTTOM);
    node.addEventListener("pointerdown", (event) => {
      const [x, y] = layers.place(event);
      const index = axisNear(x);
      const axis = index === null ? undefined : axes[index];
      if (event.button !== 0 || index === null || axis === undefined || y < TOP - 12) return;
      const range = rangeOf(axis);
      const at = place(y);
      drag = { axis: index, grip: gripAt(at, range, NEAR_END / (HEIGHT - TOP - BOTTOM)), start: at, range };
      keyed = index;
      node.setPointerCapture?.(event.pointerId);
      ctx.point(null);
      event.preventDefault();
      node.focus({ preventScroll: true });
    });
    node.addEventListener("pointermove", (event) => {
      const [x, y] = layers.place(event);
      pointer = x;
      if (drag === null) {
        const near = axisNear(x);
        const axis = near === null ? undefined : axes[near];
        const grip = axis === undefined ? null : gripAt(place(y), rangeOf(axis), NEAR_END / (HEIGHT - TOP - BOTTOM));
        node.style.cursor = grip === null ? "default" : CURSORS[grip];
        node.title = axis !== undefined && y < TOP - 10 ? axis.title : "";
        ctx.point(lineNear(x, y));
        return;
      }
      const axis = axes[drag.axis];
      if (axis !== undefined) setRange(axis, dragged(drag, place(y), least));
    });
    const end = (event: PointerEvent): void => {
      if (drag === null) return;
      const axis = axes[drag.axis];
      const range = dragged(drag, place(layers.place(event)[1]), least);
      // A click on an axis takes its range away.
      const clicked = Math.abs(place(layers.place(event)[1]) - drag.start) < least;
      if (axis !== undefined) setRange(axis, clicked ? null : range);
      drag = null;
    };
    node.addEventListener("pointerup", end);
    node.addEventListener("pointercancel", () => (drag = null));
    node.addEventListener("pointerleave", () => ctx.point(null));
    node.addEventListener("click", (event) => {
      const [x] = layers.place(event);
      if (axisNear(x) === null) selectPointed(ctx);
    });
    node.addEventListener("keydown", (event) => {
      if (!onKey(event)) return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  function onKey(event: KeyboardEvent): boolean {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by !== undefined && !event.shiftKey) {
      keyed = Math.min(axes.length - 1, Math.max(0, keyed + by));
      setAttr(layers.node, "aria-label", labelOf());
      return true;
    }
    const axis = axes[keyed];
    const up = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (up !== undefined && event.shiftKey && axis !== undefined) {
      setRange(axis, nudged(rangeOf(axis), 0.05 * up, event.altKey));
      return true;
    }
    if (event.key === "Delete" && axis !== undefined) {
      setRange(axis, null);
      return true;
    }
    return stepThrough(event, ctx, scene);
  }

  function axisNear(x: number): number | null {
    const found = axes.findIndex((_, i) => Math.abs(leftOf(i) - x) <= NEAR_AXIS);
    return found < 0 ? null : found;
  }

  function lineNear(x: number, y: number): number | null {
    if (scene === null || axes.length < 2) return null;
    const gap = leftOf(1) - leftOf(0);
    const i = Math.min(axes.length - 2, Math.max(0, Math.floor((x - SIDE) / gap)));
    const [from, to] = [axes[i], axes[i + 1]];
    if (from === undefined || to === undefined || x < SIDE - NEAR_AXIS || x > layers.width - SIDE + NEAR_AXIS) return null;
    const part = Math.min(1, Math.max(0, (x - leftOf(i)) / gap));
    let [found, least]: [number | null, number] = [null, NEAR_LINE];
    for (const trial of scene.shown) {
      const [a, b] = [placeOf(from, trial), placeOf(to, trial)];
      if (a === null || b === null) continue;
      const slope = ((topOf(b) - topOf(a)) / gap) ** 2;
      // Across the line, not along the axis: steep lines are as easy to hit.
      const distance = Math.abs(topOf(a + (b - a) * part) - y) / Math.sqrt(1 + slope);
      if (distance < least) [found, least] = [trial.trial, distance];
    }
    return found;
  }

  function labelOf(): string {
    const axis = axes[keyed];
    const brush = axis === undefined ? undefined : trials.brushes.get(axis.key);
    const range = axis === undefined || brush === undefined ? "no range" : brushText(axis, brush);
    return (
      `Parallel coordinates of ${scene?.shown.length ?? 0} trials over ${axes.map(({ label }) => label).join(", ")}. ` +
      `Axis ${axis?.label ?? ""}: ${range}. Left and right choose an axis, Shift with up and down moves its range, ` +
      `with Alt too widens it, Delete takes it away; up and down go from trial to trial.`
    );
  }

  return {
    update,
    destroy: () => layers.destroy(),
  };
}

const CURSORS = { new: "crosshair", move: "grab", from: "ns-resize", to: "ns-resize" } as const;

function topOf(place: number): number {
  return TOP + (1 - place) * (HEIGHT - TOP - BOTTOM);
}

/** Within the axis: values far out are drawn at its end. */
function placeOf(axis: TrialAxis, trial: Trial): number | null {
  const coordinate = axis.coordinate(trial);
  if (coordinate === null) return null;
  const place = axis.scale.place(coordinate);
  return Number.isNaN(place) ? null : clampPlace(place);
}

/** The axis' end means all that is past it, too. */
function valueAt({ scale }: TrialAxis, place: number, side: -1 | 1): number {
  if (side < 0 && place <= 0) return Number.NEGATIVE_INFINITY;
  if (side > 0 && place >= 1) return Number.POSITIVE_INFINITY;
  return scale.value(place);
}

function clampPlace(place: number): number {
  return Math.min(1, Math.max(0, place));
}

function halo(canvas: CanvasRenderingContext2D, text: string, x: number, y: number, colour: string, ink: Ink): void {
  canvas.lineJoin = "round";
  canvas.lineWidth = 3;
  canvas.strokeStyle = ink.background;
  canvas.strokeText(text, x, y);
  canvas.fillStyle = colour;
  canvas.fillText(text, x, y);
}
