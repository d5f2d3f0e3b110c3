/** The Logs tab: the workers' lines, of one rank or all, to search, follow, pause and keep. */
import type { Context, View } from "../context";
import { h, setAttr, setOptions, setText, setTitle, show, uniqueId } from "../dom";
import { formatCount, plural } from "../format";
import { countNewer, fold, matches, plainText, renderLine } from "../log_lines";
import type { Changed, PanelState } from "../model";
import { saveFile } from "../save";
import { VirtualList, type VirtualRow } from "../virtual";
import type { LogLine } from "../wire";

/** How long the kernel may take for a rank's file. */
export const DOWNLOAD_MS = 5_000;
const LINE_HEIGHT = 18;
/** Where there is no layout to measure a character by. */
const CHAR_WIDTH = 7.2;
/** Room at the left of a line for its rank, and at both sides of the list. */
const PADDING = 24;

export function mount(root: HTMLElement, ctx: Context): View {
  const rankId = uniqueId("log-rank");
  const rankSelect = h("select", {
    class: "rn-select",
    attrs: { id: rankId, "data-lm-suppress-shortcuts": "true" },
  });
  const search = h("input", {
    class: "rn-input",
    attrs: {
      type: "search",
      placeholder: "search",
      "aria-label": "Search the lines",
      title: "Enter: next, Shift+Enter: previous, Escape: clear",
      autocomplete: "off",
      spellcheck: "false",
      "data-lm-suppress-shortcuts": "true",
    },
  });
  const found = h("span", { class: "rn-note", attrs: { role: "status" } });
  const previous = button("↑", "Previous match", () => step(-1));
  const next = button("↓", "Next match", () => step(1));
  const errOnly = toggle("stderr only", "Hide what went to stdout", (on) => {
    onlyErr = on;
    redraw();
  });
  const follow = toggle("follow", "Keep the newest line in view", (on) => setFollow(on), true);
  const pause = toggle("pause", "Hold still; lines are still collected", (on) => setPaused(on));
  const wrap = toggle("wrap", "Break long lines", (on) => setWrap(on), true);
  const download = button("download", "Save the whole log of the one chosen, else the lines shown", () => save());
  const count = h("span", { class: "rn-readout" });
  const notice = h("div", { class: "rn-note", attrs: { role: "status" } });
  const body = h("div", { class: "rn-log-body" });
  const list = h(
    "div",
    {
      class: "rn-log rn-wrap",
      attrs: {
        tabindex: "0",
        // Off: a busy log read aloud would drown everything else.
        role: "log",
        "aria-live": "off",
        "aria-label": "Worker output",
        "data-lm-suppress-shortcuts": "true",
      },
    },
    body,
  );
  const empty = h("div", { class: "rn-empty" });
  root.append(
    h(
      "div",
      { class: "rn-toolbar" },
      h("label", { class: "rn-key", text: "output of", attrs: { for: rankId } }),
      rankSelect,
      h("span", { class: "rn-log-search" }, search, previous, next),
      found,
      errOnly,
      follow,
      pause,
      wrap,
      download,
      count,
    ),
    notice,
    list,
    empty,
  );

  let rank: number | null = null;
  let onlyErr = false;
  let following = true;
  let wrapped = true;
  /** The words that are searched, folded. */
  let query = "";
  let current: LogLine | null = null;
  let hits: LogLine[] = [];
  let latest: PanelState | null = null;
  let lines: readonly LogLine[] = [];
  /** While paused: the lines as they were, and the newest of each rank. */
  let frozen: { lines: LogLine[]; marks: Map<number, number> } | null = null;
  let downloadTimer: ReturnType<typeof setTimeout> | null = null;
  let columns = 0;

  const shown = new VirtualList<LogLine>({
    scroller: list,
    body,
    spacer() {
      const node = h("div");
      return { node, sized: node };
    },
    make: makeRow,
    key: (line) => line,
    height: (line) => LINE_HEIGHT * (wrapped ? Math.max(1, Math.ceil(lengthOf(line) / columns)) : 1),
    measure: true,
  });
  const resizer =
    typeof ResizeObserver === "function" ? new ResizeObserver(() => measureColumns()) : null;
  resizer?.observe(list);
  measureColumns();

  rankSelect.addEventListener("change", () => {
    ctx.choices.logs = rankSelect.value === "all" ? null : Number(rankSelect.value);
    takeChoice();
    redraw();
  });
  search.addEventListener("input", () => {
    query = fold(search.value);
    current = null;
    redraw();
    if (hits.length > 0) step(-1);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && search.value !== "") {
      search.value = query = "";
      current = null;
      redraw();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  // Scrolling up stops following, back to the end resumes it.
  list.addEventListener("scroll", () => {
    if (list.scrollHeight <= list.clientHeight) return;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 8;
    if (atEnd !== following) markFollow(atEnd);
  });

  function takeChoice(): void {
    if (ctx.choices.logs === rank) return;
    rank = ctx.choices.logs;
    setText(notice, "");
    shown.forget();
  }

  function update(state: PanelState, changed: Changed): void {
    latest = state;
    takeChoice();
    if (changed.files) tellFile();
    if (changed.logs || changed.workers || changed.choice) redraw();
  }

  function redraw(): void {
    if (latest === null) return;
    const state = latest;
    setOptions(
      rankSelect,
      [
        { value: "all", label: `all ${state.noun}s` },
        ...state.ranks().map((one) => ({ value: String(one), label: state.nameOf(one) })),
      ],
      rank === null ? "all" : String(rank),
    );
    const all = frozen?.lines ?? state.allLogs;
    const ofRank = rank === null ? all : (frozen === null ? (state.logs.get(rank) ?? []) : all.filter((line) => line.rank === rank));
    lines = onlyErr ? ofRank.filter((line) => line.stream === "err") : [...ofRank];
    hits = query === "" ? [] : lines.filter((line) => matches(line, query));
    if (current !== null && !hits.includes(current)) current = null;
    list.classList.toggle("rn-with-rank", rank === null);
    shown.set(lines, !following);
    if (following) shown.toEnd();
    drawWords(state);
  }

  function drawWords(state: PanelState): void {
    const none = lines.length === 0;
    show(list, !none);
    show(empty, none);
    setText(empty, state.allLogs.length > 0 ? "No lines of this kind." : "No output yet: what the workers print shows here.");
    setText(count, countText(state));
    const searching = query !== "";
    for (const node of [previous, next]) node.disabled = hits.length === 0;
    show(found, searching);
    const at = current === null ? 0 : hits.indexOf(current) + 1;
    setText(
      found,
      hits.length === 0 ? "no match" : at > 0 ? `${formatCount(at)} of ${plural(hits.length, "line")}` : plural(hits.length, "line"),
    );
    setTitle(download, rank === null ? `Save the lines shown; choose a ${state.noun} for its whole log` : `Save the whole log of ${state.nameOf(rank)}`);
  }

  function countText(state: PanelState): string {
    const lost =
      rank === null
        ? [...state.logsDropped.values()].reduce((sum, one) => sum + one, 0)
        : (state.logsDropped.get(rank) ?? 0);
    const parts = [`last ${plural(lines.length, "line")}`];
    if (frozen !== null) {
      const fresh = countNewer(state.logs, frozen.marks, (line) =>
        (rank === null || line.rank === rank) && (!onlyErr || line.stream === "err"));
      parts.push(`paused, ${formatCount(fresh)} new`);
    }
    if (lost > 0) parts.push(`${formatCount(lost)} dropped`);
    return parts.join(" · ");
  }

  function makeRow(): VirtualRow<LogLine> {
    const node = h("div");
    let look = "";
    return {
      node,
      set(line) {
        const classes = `rn-log-line rn-${line.stream}${line === current ? " rn-current" : ""}`;
        if (node.className !== classes) node.className = classes;
        const wanted = `${rank === null ? line.rank : ""}\n${query}\n${line.text}`;
        if (look === wanted) return;
        look = wanted;
        const prefix = rank === null ? [h("span", { class: "rn-log-rank", text: shortName(line.rank) })] : [];
        node.replaceChildren(...prefix, renderLine(line, query));
      },
    };
  }

  /** "3"; in a search of several workers a trial "3·1". */
  function shortName(one: number): string {
    return (latest?.nameOf(one) ?? "").replace(/^\w+ /, "").replace(" rank ", "·");
  }

  function step(by: number): void {
    if (hits.length === 0) return;
    // Without a current one: the newest when going up, the oldest when going down.
    const from = current === null ? (by > 0 ? -1 : hits.length) : hits.indexOf(current);
    current = hits[(from + by + hits.length) % hits.length] ?? null;
    markFollow(false);
    if (current !== null) shown.reveal(lines.indexOf(current));
    shown.draw(true);
    if (latest !== null) drawWords(latest);
  }

  function markFollow(on: boolean): void {
    following = on;
    setAttr(follow, "aria-pressed", String(on));
  }

  function setFollow(on: boolean): void {
    markFollow(on);
    if (on) shown.toEnd();
  }

  function setPaused(on: boolean): void {
    frozen = null;
    if (on && latest !== null) {
      const marks = new Map<number, number>();
      for (const [one, its] of latest.logs) marks.set(one, its.at(-1)?.seq ?? -1);
      // Copies: a progress bar changes its line in place.
      frozen = { lines: latest.allLogs.map((line) => ({ ...line })), marks };
    }
    current = null;
    redraw();
  }

  function setWrap(on: boolean): void {
    wrapped = on;
    list.classList.toggle("rn-wrap", on);
    shown.forget();
    redraw();
  }

  /** How many characters fit in a row: what line heights are estimated by. */
  function measureColumns(): void {
    const probe = h("span", { class: "rn-log-probe", text: "0".repeat(20) });
    list.append(probe);
    const width = probe.getBoundingClientRect().width / 20 || CHAR_WIDTH;
    probe.remove();
    const fit = Math.max(20, Math.floor(((list.clientWidth || 800) - PADDING) / width));
    if (fit === columns) return;
    columns = fit;
    shown.forget();
    redraw();
  }

  function lengthOf(line: LogLine): number {
    return plainText(line).length + (rank === null ? 5 : 0);
  }

  function save(): void {
    if (latest === null) return;
    if (rank === null) {
      saveShown(`The lines shown are saved; choose a ${latest.noun} to save its whole log.`);
      return;
    }
    const asked = rank;
    const before = latest.files.get(asked);
    setText(notice, `Asking for the log of ${latest.nameOf(asked)}…`);
    ctx.download(asked);
    if (downloadTimer !== null) clearTimeout(downloadTimer);
    downloadTimer = setTimeout(() => {
      downloadTimer = null;
      if (latest?.files.get(asked) !== before) return;
      saveShown(
        "The kernel did not answer within 5 s (it may be busy): only the lines shown are saved. " +
          "The whole log follows if it still answers.",
      );
    }, DOWNLOAD_MS);
  }

  function saveShown(words: string): void {
    const nameOf = (one: number): string => latest?.nameOf(one) ?? "";
    const text = lines.map((line) => (rank === null ? `[${nameOf(line.rank)}] ` : "") + plainText(line)).join("\n");
    const stem = rank === null ? "all" : nameOf(rank).replace(/\d+/g, (digits) => digits.padStart(5, "0"));
    const name = `${stem.replaceAll(" ", "-")}-shown.log`;
    saveFile(name, new TextEncoder().encode(`${text}\n`));
    setText(notice, `${words} (${name}, ${plural(lines.length, "line")})`);
  }

  function tellFile(): void {
    const file = rank === null ? undefined : latest?.files.get(rank);
    if (file === undefined) return;
    if (downloadTimer !== null) clearTimeout(downloadTimer);
    downloadTimer = null;
    const what = file.whole ? `Saved ${file.name}.` : `Saved ${file.name}, which is not the whole log.`;
    setText(notice, file.note === null ? what : `${what} ${file.note}`);
  }

  return {
    update,
    destroy() {
      resizer?.disconnect();
      shown.destroy();
      if (downloadTimer !== null) clearTimeout(downloadTimer);
    },
  };
}

function button(text: string, title: string, onClick: () => void): HTMLButtonElement {
  const node = h("button", { text, title, attrs: { type: "button" } });
  node.addEventListener("click", onClick);
  return node;
}

/** A button that stays down. */
function toggle(
  text: string,
  title: string,
  onChange: (on: boolean) => void,
  on = false,
): HTMLButtonElement {
  const node = button(text, title, () => {
    const now = node.getAttribute("aria-pressed") !== "true";
    setAttr(node, "aria-pressed", String(now));
    onChange(now);
  });
  node.classList.add("rn-toggle");
  setAttr(node, "aria-pressed", String(on));
  return node;
}
