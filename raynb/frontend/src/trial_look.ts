/**
 * How a trial looks, the same in curves, parallel coordinates and scatter:
 * the better its best value, the stronger its colour (in light pages darker, in
 * dark ones brighter, so that it can be told without colours); pruned ones are
 * grey and faded, and the best one stands out.
 */
import type { IconName } from "./icons";
import type { Search, Trial, TrialState } from "./search_wire";
import type { Theme } from "./theme";

export interface TrialLook {
  stroke: string;
  alpha: number;
  width: number;
}

export interface Palette {
  best: string;
  pointed: string;
  selected: string;
  failed: string;
  pruned: string;
  /** What a highlighted line is set off with. */
  halo: string;
  /** From the worst to the best. */
  ramp: readonly string[];
}

/** Colours of the ramp; more could not be told apart. */
const STEPS = 24;

export const PALETTES: Record<Theme, Palette> = {
  light: {
    best: "#d55e00",
    pointed: "#1f2328",
    selected: "#0067b8",
    failed: "#c0291f",
    pruned: "#8a9099",
    halo: "#fff",
    ramp: rampOf([168, 205, 224], [70, 150, 190], [8, 64, 129]),
  },
  dark: {
    best: "#ff9d4d",
    pointed: "#fff",
    selected: "#5cb3ec",
    failed: "#ff7b72",
    pruned: "#868e97",
    halo: "#111",
    ramp: rampOf([52, 84, 108], [52, 150, 175], [160, 235, 225]),
  },
};

export const TRIAL_WORDS: Record<
  TrialState,
  { words: string; icon: IconName; tone: "live" | "good" | "busy" | "bad" | "idle"; order: number }
> = {
  running: { words: "running", icon: "play", tone: "live", order: 0 },
  pending: { words: "pending", icon: "clock", tone: "busy", order: 1 },
  paused: { words: "paused", icon: "pause", tone: "busy", order: 2 },
  finished: { words: "finished", icon: "check", tone: "good", order: 3 },
  pruned: { words: "pruned", icon: "cut", tone: "idle", order: 4 },
  stopped: { words: "stopped", icon: "stop", tone: "idle", order: 5 },
  failed: { words: "failed", icon: "cross", tone: "bad", order: 6 },
  unknown: { words: "unknown", icon: "question", tone: "idle", order: 7 },
};

/** Whether a trial may still report. */
export function isOpen({ state }: Trial): boolean {
  return state === "running" || state === "pending" || state === "paused";
}

/** By trial: 0 for the worst best value, 1 for the best; a value's place counts, not its size. */
export function qualities(trials: Iterable<Trial>, mode: Search["mode"]): Map<number, number> {
  const sign = mode === "min" ? -1 : 1;
  const known = [...trials].filter((one): one is Trial & { best: number } => one.best !== null);
  known.sort((a, b) => (a.best - b.best) * sign);
  return new Map(known.map(({ trial }, i) => [trial, known.length > 1 ? i / (known.length - 1) : 1]));
}

/** With more lines than this all but the best are as thin as they get: it is much quicker, and there is no room. */
export const MANY_LINES = 100;

export function lookOf(trial: Trial, quality: number | undefined, theme: Theme, many = false): TrialLook {
  const { ramp, pruned, failed } = PALETTES[theme];
  if (trial.state === "pruned") return { stroke: pruned, alpha: 0.4, width: 1 };
  if (trial.state === "failed") return { stroke: failed, alpha: 0.7, width: 1 };
  // Most of the range for the upper part: which are the good ones is the question.
  const good = (quality ?? 0) ** 2.5;
  const stroke = ramp[Math.round(good * (ramp.length - 1))] ?? pruned;
  return { stroke, alpha: 0.5 + 0.5 * good, width: many ? 1 : 1 + 0.75 * good };
}

type Rgb = readonly [number, number, number];

function rampOf(...stops: Rgb[]): string[] {
  return Array.from({ length: STEPS }, (_, i) => {
    const at = (i / (STEPS - 1)) * (stops.length - 1);
    const [from = [0, 0, 0], to = from] = stops.slice(Math.min(Math.floor(at), stops.length - 2));
    const part = at - Math.min(Math.floor(at), stops.length - 2);
    return `rgb(${from.map((c, k) => Math.round(c + ((to[k] ?? c) - c) * part)).join()})`;
  });
}
