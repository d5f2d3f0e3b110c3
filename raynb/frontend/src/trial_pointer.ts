/** Pointing at trials on a canvas, by pointer or keys: the same in every chart of a search. */
import type { Context } from "./context";
import type { Layers } from "./layers";
import type { Scene } from "./trials_shown";

/** Points at the nearest trial; a click or Enter selects it, or none. */
export function pointTrials(
  layers: Layers,
  ctx: Context,
  nearest: (x: number, y: number) => number | null,
  scene: () => Scene | null,
): void {
  const { node } = layers;
  node.addEventListener("pointermove", (event) => ctx.point(nearest(...layers.place(event))));
  node.addEventListener("pointerleave", () => ctx.point(null));
  node.addEventListener("click", () => selectPointed(ctx));
  node.addEventListener("keydown", (event) => {
    if (!stepThrough(event, ctx, scene())) return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/** Selects the trial that is pointed at; where it is selected already, none. */
export function selectPointed({ trials, chose }: Context): void {
  trials.selected = trials.pointed === trials.selected ? null : trials.pointed;
  chose();
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
