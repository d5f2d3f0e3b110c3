/** Which trials the reader looks at: filtered, brushed, selected, pointed at. */
import type { PanelState } from "./model";
import { parseFilter, type Filtered, type FilterValue } from "./row_filter";
import type { Search, Trial } from "./search_wire";
import { goalAxis, paramAxes, type TrialAxis } from "./trial_axes";
import { qualities } from "./trial_look";

/** From and to on an axis, in its coordinates. */
export type Brush = readonly [from: number, to: number];

/** What all views of a search draw, made once for all of them. */
export interface Scene {
  search: Search;
  /** By index. */
  trials: readonly Trial[];
  shown: readonly Trial[];
  /** The parameters, then the metric where it is known. */
  axes: readonly TrialAxis[];
  goal: TrialAxis | null;
  /** By trial: 0 for the worst best value, 1 for the best. */
  quality: ReadonlyMap<number, number>;
  best: number | null;
  isShown(trial: number): boolean;
}

export class TrialsShown {
  selected: number | null = null;
  pointed: number | null = null;
  readonly brushes = new Map<string, Brush>();
  private words = "";
  private chosen = 0;
  private made: { key: string; scene: Scene } | null = null;

  get filter(): string {
    return this.words;
  }

  set filter(words: string) {
    this.words = words;
    this.chosen += 1;
  }

  /** Only trials within it; null: any. */
  brush(axis: string, range: Brush | null): void {
    if (range === null) this.brushes.delete(axis);
    else this.brushes.set(axis, range);
    this.chosen += 1;
  }

  /** Null where there is no search yet. */
  scene(state: PanelState): Scene | null {
    const search = state.run?.search ?? null;
    if (search === null) return null;
    const key = `${state.trialsVersion}/${this.chosen}`;
    if (this.made?.key !== key) this.made = { key, scene: this.make(state, search) };
    return this.made.scene;
  }

  private make(state: PanelState, search: Search): Scene {
    const trials = [...state.trials.values()].sort((a, b) => a.trial - b.trial);
    const goal = goalAxis(search, trials);
    const axes = [...paramAxes(search, trials), ...(goal === null ? [] : [goal])];
    const filter = parseFilter(this.words);
    const brushed = axes.flatMap((axis) => {
      const brush = this.brushes.get(axis.key);
      return brush === undefined ? [] : [{ axis, brush }];
    });
    const shown = trials.filter(
      (trial) =>
        (filter === null || filter(filtered(trial, search))) &&
        brushed.every(({ axis, brush }) => isWithin(axis.coordinate(trial), brush)),
    );
    const indexes = new Set(shown.map(({ trial }) => trial));
    return {
      search,
      trials,
      shown,
      axes,
      goal,
      quality: qualities(trials, search.mode),
      best: search.best?.trial ?? null,
      isShown: (trial) => indexes.has(trial),
    };
  }
}

/** "lr 1e-5 to 3e-4", "optimizer adam, sgd". */
export function brushText(axis: TrialAxis, [from, to]: Brush): string {
  const { scale } = axis;
  if (scale.kind !== "category") {
    if (from === Number.NEGATIVE_INFINITY) return `up to ${axis.text(to)}`;
    return to === Number.POSITIVE_INFINITY ? `from ${axis.text(from)}` : `${axis.text(from)} to ${axis.text(to)}`;
  }
  const inside: string[] = [];
  for (let i = Math.max(0, Math.ceil(from)); i <= Math.min(scale.high, Math.floor(to)); i++) inside.push(axis.text(i));
  return inside.length === 0 ? "none" : inside.join(", ");
}

function isWithin(coordinate: number | null, [from, to]: Brush): boolean {
  return coordinate !== null && coordinate >= from && coordinate <= to;
}

function filtered(trial: Trial, search: Search): Filtered {
  return {
    number: trial.trial,
    texts: [trial.state, trial.reason, trial.id, trial.node],
    value: (name) => valueOf(trial, search, name),
  };
}

/** A parameter by its name or the last part of its path, a metric, or a column. */
function valueOf(trial: Trial, search: Search, name: string): FilterValue | undefined {
  const own = trial.config.get(name);
  if (own !== undefined) return own;
  if (name === search.metric || name === "best") return trial.best;
  if (name === "latest") return trial.latest;
  if (name === "iterations") return trial.iterations;
  if (name === "time") return trial.time_s;
  if (name === "state") return trial.state;
  for (const [path, value] of trial.config) if (path.endsWith(`/${name}`)) return value;
  return trial.last.get(name);
}

