/** What the heads of a run and of a search have in common. */
import { h, setText, setTitle, show } from "../dom";
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

/** The first line: name, state and message, what stopping has to say, and the Stop button. */
export class Title {
  readonly node: HTMLElement;
  /** What was lost; its place is among the fields below. */
  readonly dropped = h("span", { class: "rn-dropped" });
  private readonly name = h("span", { class: "rn-name" });
  private readonly badge = new StateBadge();
  private readonly message = h("span", { class: "rn-message" });
  private readonly stopNote = h("span", { class: "rn-stop-note", attrs: { role: "status" } });

  constructor(stop: HTMLElement) {
    const status = h(
      "div",
      { class: "rn-status", attrs: { role: "status", "aria-live": "polite" } },
      this.badge.node,
      this.message,
    );
    this.node = h("div", { class: "rn-title" }, this.name, status, this.stopNote, stop);
  }

  set(run: Run, stopNote: string): void {
    setText(this.name, run.name);
    setTitle(this.name, run.name);
    this.badge.set(run.state);
    setText(this.message, run.message);
    setTitle(this.message, run.message);
    const lost = droppedText(run);
    show(this.dropped, lost !== "");
    setText(this.dropped, lost);
    const note = isOver(run.state) ? "" : stopNote;
    setText(this.stopNote, note);
    show(this.stopNote, note !== "");
  }
}

/** The state in words, with its icon. */
class StateBadge {
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

function droppedText({ dropped }: Run): string {
  const parts = [
    [dropped.metrics, "metric records"],
    [dropped.samples, "samples"],
    [dropped.logs, "log lines"],
    [dropped.series, "series"],
    [dropped.refused, "refused pieces of messages"],
  ] as const;
  const lost = parts.filter(([count]) => count > 0);
  if (lost.length === 0) return "";
  return `dropped: ${lost.map(([count, what]) => `${formatCount(count)} ${what}`).join(", ")}`;
}
