/** What the heads of a run and of a search have in common. */
import { h } from "../dom";
import { formatCount } from "../format";
import { icon, type IconName } from "../icons";
import type { Run, RunState } from "../wire";

export type Tone = "busy" | "good" | "bad" | "idle";

const STATES: Record<RunState, { words: string; icon: IconName; tone: Tone }> = {
  preflight: { words: "Checking", icon: "search", tone: "busy" },
  starting_ray: { words: "Starting Ray", icon: "power", tone: "busy" },
  waiting: { words: "Waiting for resources", icon: "clock", tone: "busy" },
  starting_workers: { words: "Starting workers", icon: "people", tone: "busy" },
  training: { words: "Training", icon: "play", tone: "good" },
  searching: { words: "Searching", icon: "play", tone: "good" },
  finishing: { words: "Finishing", icon: "flag", tone: "busy" },
  finished: { words: "Finished", icon: "check", tone: "good" },
  failed: { words: "Failed", icon: "cross", tone: "bad" },
  stopping: { words: "Stopping", icon: "stop", tone: "busy" },
  stopped: { words: "Stopped", icon: "stop", tone: "idle" },
  restarting: { words: "Restarting", icon: "again", tone: "busy" },
  unknown: { words: "Unknown state", icon: "question", tone: "idle" },
};

/** Which states end a run. */
export function isOver(state: RunState): boolean {
  return state === "finished" || state === "failed" || state === "stopped";
}

/** The state in words, with its icon. */
export class StateBadge {
  readonly node = h("span", { class: "rn-badge" });
  private shown: RunState | null = null;

  set(state: RunState): void {
    if (state === this.shown) return;
    this.shown = state;
    const { words, icon: name, tone } = STATES[state];
    this.node.className = `rn-badge rn-tone-${tone}`;
    this.node.replaceChildren(icon(name), words);
  }
}

/** A name and the place of its value. */
export function field(label: string): [HTMLElement, HTMLElement] {
  const value = h("span", { class: "rn-value" });
  return [value, h("span", { class: "rn-field" }, h("span", { class: "rn-key", text: label }), value)];
}

export function elapsedOf(run: Run, now: number): number | null {
  if (run.started === null) return null;
  return (run.ended ?? now) - run.started;
}

export function droppedText({ dropped }: Run): string {
  const parts = [
    [dropped.metrics, "metric records"],
    [dropped.samples, "samples"],
    [dropped.logs, "log lines"],
    [dropped.series, "series"],
  ] as const;
  const lost = parts.filter(([count]) => count > 0);
  if (lost.length === 0) return "";
  return `dropped: ${lost.map(([count, what]) => `${formatCount(count)} ${what}`).join(", ")}`;
}
