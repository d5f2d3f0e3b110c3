/** The nodes under the workers: network and disk, which all ranks of a node share. */
import { h, setText, show } from "./dom";
import { formatBytes, formatCount, formatPercent, plural, UNKNOWN } from "./format";
import { shareOf, total } from "./stats";
import { Table, textCell, type Column } from "./table";
import { barCell } from "./worker_columns";
import type { Worker } from "./wire";

interface NodeRow {
  name: string;
  ranks: number;
  rss: number | null;
  net_in: number | null;
  net_out: number | null;
  disk_read: number | null;
  disk_write: number | null;
  net_speed: number | null;
}

export interface NodeTable {
  node: HTMLElement;
  update(workers: readonly Worker[]): void;
  destroy(): void;
}

const RATES = ["net_in", "net_out", "disk_read", "disk_write"] as const;

export function nodeTable(): NodeTable {
  const table = new Table<NodeRow>({
    label: "Nodes",
    columns: columns(),
    key: ({ name }) => name,
    sort: { key: "name", direction: "ascending" },
  });
  table.node.classList.add("rn-nodes");
  const summary = h("summary");
  const node = h("details", { class: "rn-fold", attrs: { open: "" } }, summary, table.node);

  return {
    node,
    update(workers) {
      const rows = nodesOf(workers);
      // Without a rate the nodes say nothing that the ranks' rows do not.
      show(node, rows.some((row) => RATES.some((key) => row[key] !== null)));
      setText(summary, `Network and disk of ${plural(rows.length, "node")}`);
      table.set(rows);
    },
    destroy: () => table.destroy(),
  };
}

/** All ranks of a node measure the same thing: the first that knows it speaks. */
export function nodesOf(workers: readonly Worker[]): NodeRow[] {
  const byNode = new Map<string, Worker[]>();
  for (const worker of workers) {
    const name = worker.node ?? worker.ip ?? UNKNOWN;
    const ranks = byNode.get(name);
    if (ranks === undefined) byNode.set(name, [worker]);
    else ranks.push(worker);
  }
  return [...byNode].map(([name, ranks]) => {
    const first = (key: (typeof RATES)[number] | "net_speed"): number | null =>
      ranks.find((worker) => worker[key] !== null)?.[key] ?? null;
    return {
      name,
      ranks: ranks.length,
      rss: total(ranks.map(({ rss }) => rss)),
      net_in: first("net_in"),
      net_out: first("net_out"),
      disk_read: first("disk_read"),
      disk_write: first("disk_write"),
      net_speed: first("net_speed"),
    };
  });
}

function columns(): Column<NodeRow>[] {
  const net = (key: "net_in" | "net_out", label: string, title: string): Column<NodeRow> => ({
    key,
    label,
    title,
    width: 180,
    numeric: true,
    value: (row) => row[key],
    cell: () => barCell((row) => {
      const share = shareOf(row[key], row.net_speed);
      return {
        share,
        inner: null,
        text: rateText(row[key]),
        title:
          share === null
            ? "the speed of the node's link is unknown"
            : `${formatPercent(100 * share)} of the link's ${rateText(row.net_speed)}`,
      };
    }),
  });
  const disk = (key: "disk_read" | "disk_write", label: string, title: string): Column<NodeRow> => ({
    key,
    label,
    title,
    width: 100,
    numeric: true,
    value: (row) => row[key],
    cell: textCell((row) => rateText(row[key])),
  });
  return [
    {
      key: "name",
      label: "node",
      title: "The machine",
      width: 140,
      always: true,
      value: ({ name }) => name,
      cell: textCell(({ name }) => name, ({ name }) => name),
    },
    {
      key: "ranks",
      label: "ranks",
      title: "Ranks that run on it",
      width: 60,
      numeric: true,
      always: true,
      value: ({ ranks }) => ranks,
      cell: textCell(({ ranks }) => formatCount(ranks)),
    },
    net("net_in", "network in", "Bytes a second that arrive, and the share of the fastest link"),
    net("net_out", "network out", "Bytes a second that leave, and the share of the fastest link"),
    disk("disk_read", "disk read", "Bytes a second"),
    disk("disk_write", "disk write", "Bytes a second"),
    {
      key: "rss",
      label: "workers' rss",
      title: "Resident memory of all workers on the node",
      width: 100,
      numeric: true,
      value: ({ rss }) => rss,
      cell: textCell(({ rss }) => formatBytes(rss)),
    },
  ];
}

function rateText(value: number | null): string {
  return value === null ? UNKNOWN : `${formatBytes(Math.round(value))}/s`;
}
