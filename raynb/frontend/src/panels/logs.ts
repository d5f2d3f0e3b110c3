/** The workers' last lines, of one rank or of all, followed or paused. */
import { renderAnsi } from "../ansi";
import type { View } from "../context";
import { h, setAttr, setOptions, setText, show, uniqueId } from "../dom";
import { formatCount, plural } from "../format";
import type { Changed, PanelState } from "../model";
import type { LogLine } from "../wire";

interface Shown {
  node: HTMLElement;
  text: string;
}

export function mount(root: HTMLElement): View {
  const rankId = uniqueId("log-rank");
  const rankSelect = h("select", {
    class: "rn-select",
    attrs: { id: rankId, "data-lm-suppress-shortcuts": "true" },
  });
  const pause = h("button", {
    class: "rn-toggle",
    text: "pause",
    attrs: { type: "button", "aria-pressed": "false" },
  });
  const follow = h("button", {
    class: "rn-toggle",
    text: "follow",
    title: "Keep the newest line in view",
    attrs: { type: "button", "aria-pressed": "true" },
  });
  const count = h("span", { class: "rn-readout" });
  const list = h("div", {
    class: "rn-log",
    attrs: {
      tabindex: "0",
      // Off: a busy log read aloud would drown everything else.
      role: "log",
      "aria-live": "off",
      "aria-label": "Worker output",
      "data-lm-suppress-shortcuts": "true",
    },
  });
  root.append(
    h(
      "div",
      { class: "rn-toolbar" },
      h("label", { class: "rn-key", text: "output of", attrs: { for: rankId } }),
      rankSelect,
      follow,
      pause,
      count,
    ),
    list,
  );

  let rank: number | null = null;
  let paused = false;
  let following = true;
  let latest: PanelState | null = null;
  let shown = new Map<string, Shown>();

  rankSelect.addEventListener("change", () => {
    rank = rankSelect.value === "all" ? null : Number(rankSelect.value);
    clear();
    redraw();
  });
  pause.addEventListener("click", () => {
    paused = !paused;
    setAttr(pause, "aria-pressed", String(paused));
    redraw();
  });
  follow.addEventListener("click", () => setFollow(!following));
  // Scrolling up stops following, back to the end resumes it.
  list.addEventListener("scroll", () => {
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 8;
    if (atEnd !== following && list.scrollHeight > list.clientHeight) setFollow(atEnd);
  });

  function setFollow(value: boolean): void {
    following = value;
    setAttr(follow, "aria-pressed", String(following));
    if (following) list.scrollTop = list.scrollHeight;
  }

  function update(state: PanelState, changed: Changed): void {
    latest = state;
    if (changed.logs || changed.workers) redraw();
  }

  function redraw(): void {
    if (latest === null) return;
    const state = latest;
    show(root, state.logs.size > 0 || state.logsDropped.size > 0);
    setOptions(
      rankSelect,
      [
        { value: "all", label: "all ranks" },
        ...state.ranks().map((one) => ({ value: String(one), label: `rank ${one}` })),
      ],
      rank === null ? "all" : String(rank),
    );
    const lines = rank === null ? state.allLogs : (state.logs.get(rank) ?? []);
    setText(count, paused ? "paused" : countText(state, lines));
    if (!paused) draw(lines);
  }

  function countText(state: PanelState, lines: LogLine[]): string {
    const dropped =
      rank === null
        ? [...state.logsDropped.values()].reduce((sum, one) => sum + one, 0)
        : (state.logsDropped.get(rank) ?? 0);
    const kept = `last ${plural(lines.length, "line")}`;
    return dropped > 0 ? `${kept} · ${formatCount(dropped)} dropped` : kept;
  }

  function clear(): void {
    list.replaceChildren();
    shown = new Map();
  }

  /** Lines only leave at the top, change in place, or come at the end. */
  function draw(lines: LogLine[]): void {
    const scrollsBy = following ? null : list.scrollTop;
    const next = new Map<string, Shown>();
    const fresh = document.createDocumentFragment();
    for (const line of lines) {
      const key = `${line.rank}:${line.seq}`;
      const known = shown.get(key);
      if (known === undefined) {
        const node = h("div", { class: `rn-log-line rn-${line.stream}` });
        fill(node, line);
        fresh.append(node);
        next.set(key, { node, text: line.text });
        continue;
      }
      if (known.text !== line.text) {
        known.text = line.text;
        fill(known.node, line);
      }
      next.set(key, known);
    }
    for (const [key, { node }] of shown) if (!next.has(key)) node.remove();
    list.append(fresh);
    shown = next;
    list.scrollTop = scrollsBy ?? list.scrollHeight;
  }

  function fill(node: HTMLElement, line: LogLine): void {
    const prefix = rank === null ? [h("span", { class: "rn-log-rank", text: `${line.rank}` })] : [];
    node.replaceChildren(...prefix, renderAnsi(line.text));
  }

  return { update };
}
