/** What happened when: a timeline, folded until someone asks. */
import type { View } from "../context";
import { h, setText, show } from "../dom";
import { formatCount, formatDuration } from "../format";
import { icon, type IconName } from "../icons";
import type { Changed, PanelState } from "../model";
import type { EventLevel, TimelineEvent } from "../wire";

const LEVELS: Record<EventLevel, { icon: IconName; words: string }> = {
  info: { icon: "info", words: "info" },
  warn: { icon: "warn", words: "warning" },
  error: { icon: "cross", words: "error" },
};

export function mount(root: HTMLElement): View {
  const summary = h("summary");
  const list = h("ol", { class: "rn-events" });
  root.append(h("details", {}, summary, list));
  /** The events that have a row, oldest first: they come and go at the ends. */
  let shown: TimelineEvent[] = [];
  let start: number | null = null;

  function update(state: PanelState, changed: Changed): void {
    if (!changed.events && !changed.run) return;
    show(root, state.events.length > 0);
    // Times count from the start, which may become known after some events.
    const from = state.run?.started ?? null;
    const known = from === start && state.events.includes(shown.at(-1) ?? NONE);
    if (!known) {
      list.replaceChildren();
      shown = [];
      start = from;
    }
    while (shown[0] !== undefined && shown[0] !== state.events[0]) {
      shown.shift();
      list.firstElementChild?.remove();
    }
    for (const event of state.events.slice(shown.length)) list.append(row(event));
    shown = [...state.events];
    const newest = shown.at(-1);
    const total = state.eventsForgotten + shown.length;
    setText(summary, `Events (${formatCount(total)})${newest === undefined ? "" : `: ${newest.text}`}`);
  }

  function row(event: TimelineEvent): HTMLElement {
    const { icon: iconName, words } = LEVELS[event.level];
    return h(
      "li",
      { class: `rn-event rn-level-${event.level}` },
      h("span", { class: "rn-event-time", text: timeText(event.t), title: clockText(event.t) }),
      h("span", { class: "rn-event-level" }, icon(iconName), words),
      h("span", { text: event.text }),
    );
  }

  function timeText(t: number | null): string {
    if (t === null) return "";
    if (start === null) return clockText(t);
    const since = t - start;
    return since < 0 ? `−${formatDuration(-since)}` : formatDuration(since);
  }

  return { update };
}

const NONE: TimelineEvent = { t: null, level: "info", text: "" };

function clockText(t: number | null): string {
  return t === null ? "" : new Date(t * 1000).toLocaleTimeString();
}
