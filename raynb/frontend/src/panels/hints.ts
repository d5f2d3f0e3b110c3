/** The Hints tab: what could be better in this run, the numbers behind it, and the fix. */
import type { Context, View } from "../context";
import { h, setAttr, setText, show } from "../dom";
import { formatClock, formatDuration, plural } from "../format";
import { icon, type IconName } from "../icons";
import type { Changed, PanelState } from "../model";
import { rankRuns } from "../stats";
import type { EventLevel, Hint } from "../wire";

const LEVELS: Record<EventLevel, { icon: IconName; words: string; tone: string; order: number }> = {
  error: { icon: "cross", words: "error", tone: "bad", order: 0 },
  warn: { icon: "warn", words: "warning", tone: "busy", order: 1 },
  info: { icon: "info", words: "info", tone: "idle", order: 2 },
};

const WATCHED = [
  "time spent waiting for data, for other ranks and in report()",
  "ranks that are slower than the others, silent or stalled, and where they stand",
  "uneven shards and a missing set_epoch()",
  "growing memory, GPU memory, CUDA out of memory and collective time-outs",
  "NaN and infinite metrics, the learning rate after scaling out",
  "the network, and more threads than cores",
];

/** Ranks with a button of their own; more are named in one. */
const MOST_RANKS = 8;

interface Card {
  node: HTMLElement;
  hint: Hint;
  time: HTMLElement;
  ranks: HTMLElement;
}

export function mount(root: HTMLElement, ctx: Context): View {
  const active = h("div", { class: "rn-hints" });
  const over = h("div", { class: "rn-hints" });
  const overHead = h("summary");
  const overFold = h("details", { class: "rn-fold" }, overHead, over);
  const empty = h(
    "div",
    { class: "rn-nothing" },
    h("div", { class: "rn-nothing-head" }, icon("check"), "Nothing to point out"),
    h("div", { class: "rn-note", text: "While the run goes on, these are watched:" }),
    h("ul", { class: "rn-note" }, ...WATCHED.map((text) => h("li", { text }))),
  );
  root.append(empty, active, overFold);
  const cards = new Map<string, Card>();

  function update(state: PanelState, changed: Changed): void {
    if (changed.hints || changed.run) redraw(state);
    if (changed.hints || changed.run || changed.tick) {
      for (const card of cards.values()) setText(card.time, timeText(card.hint, state));
    }
    if (changed.hints || changed.choice) {
      for (const card of cards.values()) markPinned(card);
    }
  }

  function redraw(state: PanelState): void {
    const sorted = [...state.hints].sort(
      (a, b) => LEVELS[a.level].order - LEVELS[b.level].order || (b.since ?? 0) - (a.since ?? 0),
    );
    const now = sorted.filter(({ until }) => until === null);
    const ended = sorted
      .filter(({ until }) => until !== null)
      .sort((a, b) => (b.until ?? 0) - (a.until ?? 0));
    show(empty, now.length === 0);
    show(active, now.length > 0);
    show(overFold, ended.length > 0);
    setText(overHead, `Earlier (${ended.length})`);

    const next = new Set<string>();
    for (const [place, hints] of [[active, now], [over, ended]] as const) {
      hints.forEach((hint, i) => {
        const card = cardOf(hint);
        next.add(hint.id);
        if (place.children[i] !== card.node) place.insertBefore(card.node, place.children[i] ?? null);
      });
    }
    for (const [id, card] of cards) {
      if (next.has(id)) continue;
      card.node.remove();
      cards.delete(id);
    }
  }

  /** The hint's card: the one that is there, unless what it says changed. */
  function cardOf(hint: Hint): Card {
    const old = cards.get(hint.id);
    if (old !== undefined && sameWords(old.hint, hint)) {
      old.hint = hint;
      old.node.classList.toggle("rn-hint-over", hint.until !== null);
      return old;
    }
    const card = makeCard(hint);
    old?.node.remove();
    cards.set(hint.id, card);
    return card;
  }

  function makeCard(hint: Hint): Card {
    const level = LEVELS[hint.level];
    const time = h("span", { class: "rn-hint-time", title: clockTitle(hint) });
    const ranks = h("span", { class: "rn-hint-ranks" });
    drawRanks(ranks, hint.ranks);
    const node = h(
      "article",
      { class: `rn-hint rn-hint-${hint.level}`, attrs: { "aria-label": `${level.words}: ${hint.title}` } },
      h(
        "div",
        { class: "rn-hint-head" },
        h("span", { class: `rn-badge rn-tone-${level.tone}` }, icon(level.icon), level.words),
        h("span", { class: "rn-hint-title", text: hint.title }),
        time,
      ),
    );
    node.classList.toggle("rn-hint-over", hint.until !== null);
    const rows = h("dl", { class: "rn-hint-body" });
    const row = (name: string, content: Node): void => {
      rows.append(h("dt", { text: name }), h("dd", {}, content));
    };
    if (hint.ranks.length > 0) row(hint.ranks.length === 1 ? "rank" : "ranks", ranks);
    if (hint.evidence !== "") row("evidence", h("span", { text: hint.evidence }));
    if (hint.threshold !== "") row("threshold", h("span", { text: hint.threshold }));
    if (hint.fix !== "") row("fix", fixOf(hint.fix));
    node.append(rows);
    return { node, hint, time, ranks };
  }

  function drawRanks(node: HTMLElement, all: readonly number[]): void {
    for (const rank of all.slice(0, MOST_RANKS)) {
      const button = h("button", {
        class: "rn-toggle",
        text: String(rank),
        title: `Pin rank ${rank} in the charts, or let it go`,
        attrs: { type: "button", "data-rank": String(rank), "aria-label": `rank ${rank}` },
      });
      button.addEventListener("click", () => ctx.pin(rank));
      node.append(button);
    }
    const rest = all.slice(MOST_RANKS);
    if (rest.length > 0) {
      node.append(h("span", { text: `and ${plural(rest.length, "more rank")}: ${rankRuns(rest)}`, title: rankRuns(rest, 100) }));
    }
  }

  function markPinned({ ranks }: Card): void {
    for (const button of ranks.querySelectorAll("button")) {
      setAttr(button, "aria-pressed", String(ctx.choices.pinned.has(Number(button.dataset["rank"]))));
    }
  }

  return { update };
}

function sameWords(a: Hint, b: Hint): boolean {
  return (
    a.level === b.level &&
    a.title === b.title &&
    a.evidence === b.evidence &&
    a.threshold === b.threshold &&
    a.fix === b.fix &&
    a.since === b.since &&
    a.until === b.until &&
    a.ranks.join() === b.ranks.join()
  );
}

function timeText({ since, until }: Hint, state: PanelState): string {
  if (since === null) return "";
  const started = state.run?.started ?? null;
  const at = (time: number): string =>
    started === null ? formatClock(time) : formatDuration(time - started);
  // A run that ended no longer makes a hint older.
  const end = until ?? state.run?.ended ?? state.now();
  const lasted = formatDuration(end - since);
  return until === null ? `since ${at(since)}, for ${lasted}` : `from ${at(since)} to ${at(until)}`;
}

function clockTitle({ since, until }: Hint): string {
  const end = until === null ? "still true" : `until ${formatClock(until)}`;
  return since === null ? "" : `since ${formatClock(since)}, ${end}; the times count from the run's start`;
}

/** The fix: prose as paragraphs, lines that start with four spaces as code to copy. */
function fixOf(fix: string): HTMLElement {
  const node = h("div", { class: "rn-fix" });
  for (const { code, lines } of blocksOf(fix)) {
    node.append(code ? codeBlock(lines.join("\n")) : h("p", { text: lines.join(" ") }));
  }
  return node;
}

interface Block {
  code: boolean;
  lines: string[];
}

export function blocksOf(fix: string): Block[] {
  const blocks: Block[] = [];
  let open = false;
  for (const line of fix.split("\n")) {
    const blank = line.trim() === "";
    const code = line.startsWith("    ") && !blank;
    const last = blocks.at(-1);
    if (blank) {
      // Inside code a blank line belongs to it; it ends a paragraph.
      if (last?.code === true) last.lines.push("");
      else open = false;
    } else if (last !== undefined && last.code === code && (code || open)) {
      last.lines.push(code ? line.slice(4) : line.trim());
    } else {
      blocks.push({ code, lines: [code ? line.slice(4) : line.trim()] });
      open = true;
    }
  }
  for (const { code, lines } of blocks) while (code && lines.at(-1) === "") lines.pop();
  return blocks;
}

function codeBlock(code: string): HTMLElement {
  const button = h("button", { class: "rn-copy", text: "copy", attrs: { type: "button" } });
  const pre = h("pre", { text: code });
  let timer: ReturnType<typeof setTimeout> | undefined;
  button.addEventListener("click", () => {
    void copy(code, pre).then((done) => {
      setText(button, done ? "copied" : "selected: copy it");
      clearTimeout(timer);
      timer = setTimeout(() => setText(button, "copy"), 2_000);
    });
  });
  return h("div", { class: "rn-code" }, pre, button);
}

/** To the clipboard; where the page may not, the code is selected for the reader. */
async function copy(code: string, shown: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(code);
    return true;
  } catch {
    getSelection()?.selectAllChildren(shown);
    return false;
  }
}
