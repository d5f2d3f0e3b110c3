/** The Workers tab: a row a rank to sort, filter and pin, and the nodes they run on. */
import type { Context, View } from "../context";
import { h, setText, show, uniqueId } from "../dom";
import { formatCount, plural } from "../format";
import { icon } from "../icons";
import type { Changed, PanelState } from "../model";
import { nodeTable } from "../node_table";
import { parseFilter, type Filtered, type RowFilter } from "../row_filter";
import { median } from "../stats";
import { Table } from "../table";
import type { Worker, WorkerStatus } from "../wire";
import {
  isSlow,
  ownRatios,
  STATUSES,
  stepLegend,
  stillText,
  workerColumns,
  type RankRow,
  type Surroundings,
} from "../worker_columns";

/** From this many ranks on a row of medians and sums leads the table. */
const SUMMARY_FROM = 4;
/** Bars of a step end here at the latest: one slow rank must not flatten the others. */
const SCALE_FACTOR = 2.5;

export function mount(root: HTMLElement, ctx: Context): View {
  const filterId = uniqueId("filter");
  const input = h("input", {
    class: "rn-input",
    attrs: {
      id: filterId,
      type: "search",
      placeholder: "3, 7-12, node, status, slow",
      title: "Ranks (3, 7-12), node names or statuses; commas mean or",
      autocomplete: "off",
      spellcheck: "false",
      "data-lm-suppress-shortcuts": "true",
    },
  });
  const counts = h("span", { class: "rn-counts" });
  const legend = stepLegend();
  const toolbar = h(
    "div",
    { class: "rn-toolbar" },
    h("label", { class: "rn-key", text: "show", attrs: { for: filterId } }),
    input,
    counts,
    legend,
  );
  const around: Surroundings = { now: 0, theme: "light", stepScale: 0 };
  const table = new Table<RankRow>({
    label: "Workers",
    columns: workerColumns(around),
    key: ({ worker }) => worker.rank,
    sort: { key: "rank", direction: "ascending" },
    note: ({ worker }) => stillText(worker, around.now),
    onRow: ({ worker }) => ctx.pin(worker.rank),
    rowClass: ({ pinned }) => (pinned ? "rn-pinned" : ""),
    summaryFrom: SUMMARY_FROM,
  });
  const empty = h("div", { class: "rn-empty" });
  const nodes = nodeTable();
  root.append(toolbar, table.node, empty, nodes.node);

  let filter: RowFilter | null = null;
  let latest: PanelState | null = null;

  input.addEventListener("input", () => {
    filter = parseFilter(input.value);
    table.node.scrollTop = 0;
    redraw();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || input.value === "") return;
    input.value = "";
    filter = null;
    redraw();
    event.stopPropagation();
  });

  function update(state: PanelState, changed: Changed): void {
    latest = state;
    if (changed.workers || changed.choice || changed.run || changed.tick) redraw();
    if (changed.workers) nodes.update([...state.workers.values()]);
  }

  function redraw(): void {
    if (latest === null) return;
    const workers = [...latest.workers.values()];
    const any = workers.length > 0;
    for (const node of [toolbar, table.node]) show(node, any);
    around.now = latest.now();
    around.theme = ctx.theme();
    around.stepScale = stepScale(workers);
    const ratios = ownRatios(workers);
    const all = workers.map((worker): RankRow => ({
      worker,
      own: ratios.get(worker.rank) ?? null,
      pinned: ctx.choices.pinned.has(worker.rank),
    }));
    const rows = filter === null ? all : all.filter(matching(filter));
    show(empty, rows.length === 0);
    setText(empty, any ? "No rank matches the filter." : "No workers yet.");
    show(table.node, rows.length > 0);
    show(legend, workers.some(({ step_s }) => step_s !== null));
    table.set(rows, all);
    drawCounts(workers, all.filter(isSlow).length, rows.length);
  }

  let counted = "";

  function drawCounts(workers: readonly Worker[], slow: number, shown: number): void {
    const byStatus = new Map<WorkerStatus, number>();
    for (const { status } of workers) byStatus.set(status, (byStatus.get(status) ?? 0) + 1);
    const still = workers.filter(({ still_since }) => still_since !== null).length;
    const key = JSON.stringify([[...byStatus].sort(), slow, still, shown]);
    if (key === counted) return;
    counted = key;
    const parts: Node[] = [];
    if (shown < workers.length) {
      parts.push(h("span", { text: `${formatCount(shown)} of ${plural(workers.length, "rank")}` }));
    }
    for (const [status, count] of [...byStatus].sort(([a], [b]) => STATUSES[a].order - STATUSES[b].order)) {
      const { icon: name, tone } = STATUSES[status];
      parts.push(h("span", { class: `rn-badge rn-tone-${tone}` }, icon(name), `${formatCount(count)} ${status}`));
    }
    if (still > 0) parts.push(h("span", { class: "rn-badge rn-tone-busy" }, icon("warn"), `${formatCount(still)} without a step`));
    if (slow > 0) parts.push(h("span", { class: "rn-badge rn-tone-busy" }, icon("warn"), `${formatCount(slow)} slow`));
    counts.replaceChildren(...parts);
  }

  return {
    update,
    destroy() {
      table.destroy();
      nodes.destroy();
    },
  };
}

function matching(filter: RowFilter): (row: RankRow) => boolean {
  return (row) => filter(wordsOf(row));
}

function wordsOf(row: RankRow): Filtered {
  const { worker } = row;
  return {
    number: worker.rank,
    texts: [
      worker.node,
      worker.ip,
      worker.status,
      worker.device,
      isSlow(row) ? "slow" : null,
      worker.still_since === null ? null : "still",
    ],
  };
}

function stepScale(workers: readonly Worker[]): number {
  const steps = workers.map(({ step_s }) => step_s);
  const middle = median(steps) ?? 0;
  const longest = steps.reduce<number>((most, one) => Math.max(most, one ?? 0), 0);
  return Math.min(longest, middle * SCALE_FACTOR);
}
