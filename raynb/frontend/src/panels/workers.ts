/** A row a rank: what it runs on, how busy it is, how far its data is. */
import { shownMetric, type Context, type View } from "../context";
import { h, setAttr, setText, setTitle, show } from "../dom";
import {
  formatBytes,
  formatCount,
  formatMemory,
  formatPercent,
  formatRate,
  formatValue,
  plural,
  UNKNOWN,
} from "../format";
import { icon, type IconName } from "../icons";
import type { Changed, PanelState } from "../model";
import type { Run, Shard, Worker, WorkerStatus } from "../wire";

const STATUSES: Record<WorkerStatus, { icon: IconName; tone: string }> = {
  starting: { icon: "power", tone: "busy" },
  running: { icon: "play", tone: "good" },
  waiting: { icon: "clock", tone: "busy" },
  finished: { icon: "check", tone: "good" },
  failed: { icon: "cross", tone: "bad" },
  stopped: { icon: "stop", tone: "idle" },
  unknown: { icon: "question", tone: "idle" },
};

interface Row {
  node: HTMLTableRowElement;
  update(worker: Worker): void;
  setMetric(value: number | null): void;
}

export function mount(root: HTMLElement, ctx: Context): View {
  const metricHead = h("th", { class: "rn-c-metric", attrs: { scope: "col" } });
  const head = (name: string, text: string): HTMLElement =>
    h("th", { class: `rn-c-${name}`, text, attrs: { scope: "col" } });
  const body = h("tbody");
  const table = h(
    "table",
    { class: "rn-workers" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        head("rank", "rank"),
        head("status", "status"),
        head("where", "device · node"),
        head("use", "use · memory"),
        head("step", "step"),
        head("shard", "data"),
        metricHead,
      ),
    ),
    body,
  );
  const scroll = h(
    "div",
    {
      class: "rn-workers-scroll",
      attrs: {
        tabindex: "0",
        role: "region",
        "aria-label": "Workers",
        "data-lm-suppress-shortcuts": "true",
      },
    },
    table,
  );
  const totals = h("div", { class: "rn-note rn-shard-totals" });
  root.append(scroll, totals);
  const rows = new Map<number, Row>();

  function update(state: PanelState, changed: Changed): void {
    show(root, state.workers.size > 0);
    if (changed.workers) updateRows(state);
    if (changed.workers || changed.series || changed.choice) updateMetric(state);
    if ((changed.workers || changed.run) && state.run !== null) {
      const lines = totalsText(state.run, [...state.workers.values()]);
      setText(totals, lines.join("  ·  "));
      show(totals, lines.length > 0);
    }
  }

  function updateRows(state: PanelState): void {
    for (const [rank, row] of rows) {
      if (state.workers.has(rank)) continue;
      row.node.remove();
      rows.delete(rank);
    }
    const ranks = [...state.workers.keys()].sort((a, b) => a - b);
    ranks.forEach((rank, i) => {
      const worker = state.workers.get(rank);
      if (worker === undefined) return;
      let row = rows.get(rank);
      if (row === undefined) rows.set(rank, (row = makeRow(rank)));
      if (body.children[i] !== row.node) body.insertBefore(row.node, body.children[i] ?? null);
      row.update(worker);
    });
  }

  function updateMetric(state: PanelState): void {
    const metric = shownMetric(state, ctx.choices);
    setText(metricHead, metric ?? "metric");
    setTitle(metricHead, metric === null ? "" : `newest value of ${metric}`);
    for (const [rank, row] of rows) {
      row.setMetric(metric === null ? null : state.latest(metric, rank));
    }
  }

  return { update };
}

function makeRow(rank: number): Row {
  const [status, where, node, use, memory, step, rate, shard, metric] = [
    h("span", { class: "rn-badge" }),
    h("div", { class: "rn-line" }),
    h("div", { class: "rn-line rn-sub" }),
    bar(),
    h("div", { class: "rn-line rn-sub" }),
    h("div", { class: "rn-line" }),
    h("div", { class: "rn-line rn-sub" }),
    shardCell(),
    h("td", { class: "rn-c-metric rn-value" }),
  ];
  const useCell = h("td", { class: "rn-c-use" }, use.node, memory);
  const whereCell = h("td", { class: "rn-c-where" }, where, node);
  const row = h(
    "tr",
    {},
    h("th", { class: "rn-c-rank", text: String(rank), attrs: { scope: "row" } }),
    h("td", { class: "rn-c-status" }, status),
    whereCell,
    useCell,
    h("td", { class: "rn-c-step" }, step, rate),
    h("td", { class: "rn-c-shard" }, shard.node),
    metric,
  );
  let shown: Worker | null = null;

  return {
    node: row,
    update(worker) {
      if (worker === shown) return;
      if (worker.status !== shown?.status) {
        const { icon: iconName, tone } = STATUSES[worker.status];
        status.className = `rn-badge rn-tone-${tone}`;
        status.replaceChildren(icon(iconName), worker.status);
      }
      shown = worker;
      setText(where, worker.device);
      const place = worker.node ?? worker.ip ?? UNKNOWN;
      setText(node, place);
      setTitle(whereCell, whereTitle(worker));
      use.set(worker.util, `${worker.device_kind ?? ""} ${formatPercent(worker.util)}`.trim());
      setText(memory, formatMemory(worker.mem_used, worker.mem_total));
      setTitle(useCell, worker.note ?? memoryTitle(worker));
      setText(step, formatCount(worker.step));
      setText(rate, formatRate(worker.rate));
      shard.set(worker.shard);
    },
    setMetric(value) {
      setText(metric, formatValue(value));
    },
  };
}

interface Bar {
  node: HTMLElement;
  set(percent: number | null, label: string): void;
}

/** A bar with its number in words; without a known share it stays empty. */
function bar(): Bar {
  const fill = h("span", { class: "rn-bar-fill" });
  const label = h("span", { class: "rn-bar-label" });
  const node = h("div", { class: "rn-bar" }, h("span", { class: "rn-bar-track" }, fill), label);
  return {
    node,
    set(percent, words) {
      const width = percent === null ? 0 : Math.min(100, Math.max(0, percent));
      fill.style.width = `${width.toFixed(1)}%`;
      node.classList.toggle("rn-unknown", percent === null);
      setText(label, words);
    },
  };
}

function shardCell(): { node: HTMLElement; set(shard: Shard | null): void } {
  const progress = h("progress", { attrs: { max: "1" } });
  const rows = h("div", { class: "rn-line" });
  const batches = h("div", { class: "rn-line rn-sub" });
  const node = h("div", { class: "rn-shard" }, rows, progress, batches);
  return {
    node,
    set(shard) {
      show(progress, shard !== null);
      if (shard === null) {
        setText(rows, UNKNOWN);
        setText(batches, "");
        setTitle(node, "");
        return;
      }
      const share = shareOf(shard);
      if (share === null) progress.removeAttribute("value");
      else progress.value = share;
      setAttr(progress, "aria-label", `${shard.name}: rows seen`);
      setText(rows, `rows ${ofTotal(shard.rows_seen, shard.rows_total)}`);
      setText(
        batches,
        [
          `batches ${ofTotal(shard.batches_seen, shard.batches_total)}`,
          ...(shard.epoch === null ? [] : [`epoch ${formatCount(shard.epoch)}`]),
        ].join(" · "),
      );
      const size = shard.batch_size === null ? "" : `, batches of ${formatCount(shard.batch_size)}`;
      setTitle(node, `${shard.name}${size}`);
    },
  };
}

function shareOf(shard: Shard): number | null {
  const [seen, total] =
    shard.rows_total !== null
      ? [shard.rows_seen, shard.rows_total]
      : [shard.batches_seen, shard.batches_total];
  return seen === null || total === null || total <= 0 ? null : Math.min(1, seen / total);
}

function ofTotal(seen: number | null, total: number | null): string {
  return `${formatCount(seen)} / ${formatCount(total)}`;
}

function whereTitle(worker: Worker): string {
  const parts = [worker.device, worker.node, worker.ip];
  if (worker.pid !== null) parts.push(`process ${worker.pid}`);
  return parts.filter((part) => part !== null).join(" · ");
}

function memoryTitle(worker: Worker): string {
  return `memory in use: ${formatBytes(worker.mem_used)} of ${formatBytes(worker.mem_total)}`;
}

/** "train: 30,000 of 60,000 rows this epoch over 2 ranks", a line a shard name. */
export function totalsText(run: Run, workers: Worker[]): string[] {
  const byName = new Map<string, Shard[]>();
  for (const { shard } of workers) {
    if (shard === null) continue;
    const shards = byName.get(shard.name);
    if (shards === undefined) byName.set(shard.name, [shard]);
    else shards.push(shard);
  }
  return [...byName].map(([name, shards]) => {
    const seen = sumKnown(shards.map((shard) => shard.rows_seen));
    const total = run.shard_totals[name] ?? sumKnown(shards.map((shard) => shard.rows_total));
    const epoch = shards.some((shard) => shard.epoch !== null) ? " this epoch" : "";
    return (
      `${name}: ${formatCount(seen)} of ${formatCount(total)} rows${epoch} ` +
      `over ${plural(shards.length, "rank")}`
    );
  });
}

/** A sum is known when all its parts are. */
function sumKnown(parts: (number | null)[]): number | null {
  return parts.reduce((sum, part) => (sum === null || part === null ? null : sum + part), 0);
}
