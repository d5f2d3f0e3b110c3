/** One loader over all ranks: its totals, how evenly it is split, and a row a rank. */
import { h, setAttr, setText, setTitle, show } from "./dom";
import {
  formatCount,
  formatDuration,
  formatPercent,
  formatShort,
  plural,
  UNKNOWN,
} from "./format";
import { icon } from "./icons";
import { RankStrip } from "./rank_strip";
import { known, median, percentOf, rankRuns, shareOf, total } from "./stats";
import { Table, textCell, type Cell, type Column } from "./table";
import { RANK_COLUMN, setWidth } from "./worker_columns";
import type { Shard, Worker } from "./wire";

export interface ShardRow {
  worker: Worker;
  shard: Shard;
  /** Whether this is the loader trained on: speed and waits are about that one. */
  trained: boolean;
  pinned: boolean;
}

/** From this many ranks on a strip shows all of them at once. */
const STRIP_FROM = 9;
/** Shards whose smallest and largest differ by more than this share are uneven. */
const UNEVEN = 0.02;

export interface LoaderOptions {
  open: boolean;
  onRow(rank: number): void;
}

export class LoaderSection {
  readonly node: HTMLDetailsElement;
  private readonly headline = h("span", { class: "rn-loader-rows" });
  private readonly progress = h("progress", { attrs: { max: "1" } });
  private readonly facts = h("div", { class: "rn-facts" });
  private readonly spread = h("div", { class: "rn-spread" });
  private readonly strip: RankStrip;
  private readonly table: Table<ShardRow>;
  /** The rows that fill a bar: the largest shard's, so that bars compare. */
  private scale = 0;
  private rows: readonly ShardRow[] = [];
  private shownFacts = "";
  private shownSpread = "";

  constructor(
    private readonly name: string,
    { open, onRow }: LoaderOptions,
  ) {
    this.table = new Table<ShardRow>({
      label: `Ranks of ${name}`,
      columns: columns(() => this.scale),
      key: ({ worker }) => worker.rank,
      sort: { key: "rank", direction: "ascending" },
      onRow: ({ worker }) => onRow(worker.rank),
      rowClass: ({ pinned }) => (pinned ? "rn-pinned" : ""),
    });
    this.strip = new RankStrip((rank) => this.table.reveal(rank));
    this.node = h(
      "details",
      { class: "rn-loader" },
      h("summary", {}, h("span", { class: "rn-loader-name", text: name }), this.headline),
      this.progress,
      this.facts,
      this.spread,
      this.strip.node,
      this.table.node,
    );
    this.node.open = open;
    // A folded table is not drawn: it catches up when it is opened.
    this.node.addEventListener("toggle", () => this.drawRows());
  }

  update(rows: readonly ShardRow[], runTotal: number | null): void {
    const shards = rows.map(({ shard }) => shard);
    const totals = shards.map(({ rows_total }) => rows_total);
    const seen = total(shards.map(({ rows_seen }) => rows_seen));
    const all = runTotal ?? total(totals);
    this.scale = Math.max(0, ...known(totals), ...known(shards.map(({ rows_seen }) => rows_seen)));
    const epoch = shards.some((shard) => shard.epoch !== null) ? " this epoch" : "";
    setText(
      this.headline,
      `${formatCount(seen)} of ${formatCount(all)} rows${epoch}, over ${plural(rows.length, "rank")}`,
    );
    const share = shareOf(seen, all);
    if (share === null) this.progress.removeAttribute("value");
    else this.progress.value = Math.min(1, share);
    setAttr(this.progress, "aria-label", `${this.name}: rows seen of all ranks`);
    this.drawFacts(rows);
    this.drawSpread(rows);
    this.rows = rows;
    this.drawRows();
  }

  destroy(): void {
    this.table.destroy();
    this.node.remove();
  }

  private drawRows(): void {
    const { rows, scale } = this;
    const many = rows.length >= STRIP_FROM && scale > 0;
    show(this.strip.node, many);
    if (!this.node.open) return;
    if (many) {
      this.strip.update(
        rows.map(({ worker, shard }) => ({
          rank: worker.rank,
          part: shard.rows_seen,
          whole: shard.rows_total,
        })),
        scale,
      );
    }
    this.table.set(rows);
  }

  private drawFacts(rows: readonly ShardRow[]): void {
    const facts = factsOf(rows);
    const key = JSON.stringify(facts);
    if (key === this.shownFacts) return;
    this.shownFacts = key;
    this.facts.replaceChildren(
      ...facts.map(({ label, text, bad, title }) => {
        const node = h(
          "span",
          { class: `rn-fact${bad === true ? " rn-tone-busy" : ""}`, title: title ?? "" },
          h("span", { class: "rn-key", text: label }),
          h("span", { class: "rn-value", text }),
        );
        if (bad === true) node.prepend(icon("warn"));
        return node;
      }),
    );
  }

  /** Smallest, middle and largest rank, for what can be uneven. */
  private drawSpread(rows: readonly ShardRow[]): void {
    const lines = rows.length < STRIP_FROM ? [] : spreadOf(rows);
    show(this.spread, lines.length > 0);
    const key = JSON.stringify(lines);
    if (key === this.shownSpread) return;
    this.shownSpread = key;
    const button = (what: string, { rank, text }: { rank: number; text: string }): HTMLElement => {
      const node = h("button", {
        class: "rn-extreme",
        title: `Show rank ${rank} in the table`,
        attrs: { type: "button" },
      }, `${what} `, h("b", { text }), ` rank ${rank}`);
      node.addEventListener("click", () => this.table.reveal(rank));
      return node;
    };
    this.spread.replaceChildren(
      ...lines.map(({ label, low, middle, high }) =>
        h(
          "div",
          { class: "rn-spread-line" },
          h("span", { class: "rn-key", text: label }),
          ...(low.text === high.text
            ? [h("span", {}, "all ranks ", h("b", { text: middle }))]
            : [button("min", low), h("span", {}, "median ", h("b", { text: middle })), button("max", high)]),
        ),
      ),
    );
  }
}

interface Fact {
  label: string;
  text: string;
  bad?: boolean;
  title?: string;
}

export function factsOf(rows: readonly ShardRow[]): Fact[] {
  const shards = rows.map(({ shard }) => shard);
  const facts: Fact[] = [];
  const range = (values: (number | null)[]): string => {
    const all = known(values);
    if (all.length === 0) return UNKNOWN;
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return low === high ? formatCount(low) : `${formatCount(low)} to ${formatCount(high)}`;
  };

  const kinds = new Set(shards.map(({ kind }) => kind));
  const [kind] = kinds;
  if (kinds.size === 1 && kind != null) facts.push({ label: "kind", text: KINDS[kind] });
  facts.push({ label: "epoch", text: range(shards.map(({ epoch }) => epoch)) });
  const sizes = shards.map(({ batch_size }) => batch_size);
  const whole = total(sizes);
  facts.push({
    label: "batch",
    text: `${range(sizes)} a worker, ${formatCount(whole)} global`,
    title: `batch size of a worker, and the sum over ${plural(rows.length, "rank")}`,
  });
  if (rows.some(({ trained, worker }) => trained && worker.rows_rate !== null)) {
    const speed = total(rows.map(({ worker }) => worker.rows_rate));
    facts.push({ label: "speed", text: `${formatShort(speed)} rows/s`, title: "sum over the ranks" });
    const waits = median(rows.map(waitPercent));
    facts.push({ label: "wait", text: waits === null ? UNKNOWN : `${formatPercent(waits)} of a step`, title: "median share of a step spent waiting for data" });
  }
  const etas = known(shards.map(({ eta_s }) => eta_s));
  facts.push({
    label: "epoch ends in",
    text: etas.length === 0 ? UNKNOWN : formatDuration(Math.max(...etas)),
    title: "the slowest rank's estimate",
  });
  facts.push(...lossFacts(rows), ...orderFacts(rows));
  return facts;
}

const KINDS = { map: "map-style", iterable: "iterable", ray: "Ray Data" } as const;

/** Rows that some ranks leave out or see twice, and shards that differ. */
function lossFacts(rows: readonly ShardRow[]): Fact[] {
  const facts: Fact[] = [];
  const sum = (key: "rows_dropped" | "rows_repeated"): number =>
    known(rows.map(({ shard }) => shard[key])).reduce((a, b) => a + b, 0);
  const [dropped, repeated] = [sum("rows_dropped"), sum("rows_repeated")];
  if (dropped > 0) {
    facts.push({ label: "dropped", text: `${formatCount(dropped)} rows an epoch`, title: "rows that no rank sees, so that all get as many" });
  }
  if (repeated > 0) {
    facts.push({ label: "repeated", text: `${formatCount(repeated)} rows an epoch`, title: "rows seen twice, so that all ranks get as many" });
  }
  const sizes = known(rows.map(({ shard }) => shard.rows_total));
  const [low, high] = [Math.min(...sizes), Math.max(...sizes)];
  if (sizes.length > 1 && high > 0 && (high - low) / high > UNEVEN) {
    facts.push({
      label: "uneven shards",
      text: `${formatCount(low)} to ${formatCount(high)} rows`,
      bad: true,
      title: "ranks with fewer rows end their epoch earlier; the others wait for them or hang",
    });
  }
  return facts;
}

function orderFacts(rows: readonly ShardRow[]): Fact[] {
  const facts: Fact[] = [];
  const shuffles = new Set(rows.map(({ shard }) => shard.shuffle));
  const [shuffle] = shuffles;
  facts.push({
    label: "shuffle",
    text: shuffles.size > 1 ? "differs between ranks" : shuffleText(shuffle ?? null),
    bad: shuffles.size > 1,
  });
  const missing = rows.filter(({ shard }) => shard.set_epoch === "missing").map(({ worker }) => worker.rank);
  if (missing.length > 0) {
    facts.push({
      label: "set_epoch",
      text: missing.length === rows.length ? "missing" : `missing on ranks ${rankRuns(missing, 4)}`,
      bad: true,
      title: "without sampler.set_epoch(epoch) every epoch has the same order",
    });
  } else if (rows.some(({ shard }) => shard.set_epoch === "ok")) {
    facts.push({ label: "set_epoch", text: "ok" });
  }
  return facts;
}

interface Spread {
  label: string;
  low: { rank: number; text: string };
  middle: string;
  high: { rank: number; text: string };
}

export function spreadOf(rows: readonly ShardRow[]): Spread[] {
  const measures: [string, (row: ShardRow) => number | null, (value: number | null) => string][] = [
    ["rows seen", ({ shard }) => shard.rows_seen, formatCount],
    ["rows expected", ({ shard }) => shard.rows_total, formatCount],
    ["rows/s", ({ worker, trained }) => (trained ? worker.rows_rate : null), formatShort],
    ["data wait", waitPercent, formatPercent],
  ];
  return measures.flatMap(([label, of, format]) => {
    const ends = extremes(rows, of);
    if (ends === null) return [];
    const end = ({ rank, value }: { rank: number; value: number }) => ({ rank, text: format(value) });
    return [{ label, low: end(ends.low), middle: format(median(rows.map(of))), high: end(ends.high) }];
  });
}

function extremes(
  rows: readonly ShardRow[],
  of: (row: ShardRow) => number | null,
): { low: { rank: number; value: number }; high: { rank: number; value: number } } | null {
  let [low, high]: [{ rank: number; value: number } | null, { rank: number; value: number } | null] = [null, null];
  for (const row of rows) {
    const value = of(row);
    if (value === null) continue;
    const here = { rank: row.worker.rank, value };
    if (low === null || value < low.value) low = here;
    if (high === null || value > high.value) high = here;
  }
  return low === null || high === null ? null : { low, high };
}

function waitPercent({ worker, trained }: ShardRow): number | null {
  return trained ? percentOf(worker.wait_s, worker.step_s) : null;
}

function columns(scale: () => number): Column<ShardRow>[] {
  const count = (
    key: keyof Shard & ("rows_dropped" | "rows_repeated" | "batch_size" | "epoch"),
    label: string,
    width: number,
    title: string,
  ): Column<ShardRow> => ({
    key,
    label,
    title,
    width,
    numeric: true,
    value: ({ shard }) => shard[key],
    cell: textCell(({ shard }) => formatCount(shard[key])),
  });
  return [
    { ...RANK_COLUMN, cell: pinCell },
    count("epoch", "epoch", 54, "Epochs that the loader has begun before this one"),
    {
      key: "rows",
      label: "rows seen / expected",
      title: "Rows of this epoch; all bars have the same scale, the largest shard's",
      width: 300,
      always: true,
      first: "descending",
      value: ({ shard }) => shard.rows_seen,
      cell: () => rowsCell(scale),
    },
    {
      key: "batches",
      label: "batches",
      title: "Batches of this epoch",
      width: 96,
      numeric: true,
      value: ({ shard }) => shard.batches_seen,
      cell: textCell(({ shard }) => `${formatCount(shard.batches_seen)} / ${formatCount(shard.batches_total)}`),
    },
    count("batch_size", "batch", 56, "Rows a batch of this worker"),
    count("rows_dropped", "dropped", 64, "Rows an epoch that drop_last or an equal split leaves out"),
    count("rows_repeated", "repeated", 68, "Rows an epoch that pad the shard, seen twice"),
    {
      key: "rate",
      label: "rows/s",
      title: "Rows a second over the last ten seconds",
      width: 62,
      numeric: true,
      value: ({ worker, trained }) => (trained ? worker.rows_rate : null),
      cell: textCell(({ worker, trained }) => (trained ? formatShort(worker.rows_rate) : UNKNOWN)),
    },
    {
      key: "wait",
      label: "data wait",
      title: "Share of a step spent waiting for the next batch",
      width: 72,
      numeric: true,
      value: waitPercent,
      cell: textCell((row) => formatPercent(waitPercent(row))),
    },
    {
      key: "eta",
      label: "ends in",
      title: "When this epoch is done at the current speed",
      width: 62,
      numeric: true,
      value: ({ shard }) => shard.eta_s,
      cell: textCell(({ shard }) => formatDuration(shard.eta_s)),
    },
    {
      key: "shuffle",
      label: "shuffle",
      title: "Whether the order is random",
      width: 60,
      value: ({ shard }) => (shard.shuffle === null ? null : shuffleText(shard.shuffle)),
      cell: textCell(({ shard }) => shuffleText(shard.shuffle)),
    },
    {
      key: "set_epoch",
      label: "set_epoch",
      title: "Whether sampler.set_epoch() is called, so that epochs differ in order",
      width: 78,
      value: ({ shard }) => shard.set_epoch,
      cell: textCell(({ shard }) => shard.set_epoch ?? UNKNOWN),
    },
  ];
}

function shuffleText(shuffle: boolean | null): string {
  return shuffle === null ? UNKNOWN : shuffle ? "on" : "off";
}

function pinCell(): Cell<ShardRow> {
  const button = h("button", { class: "rn-pin", attrs: { type: "button" } });
  return {
    node: h("td", {}, button),
    set({ worker, pinned }) {
      setText(button, String(worker.rank));
      setAttr(button, "aria-pressed", String(pinned));
      setAttr(button, "aria-label", `rank ${worker.rank}: ${pinned ? "unpin from" : "pin in"} the charts`);
    },
  };
}

/** The track is as long as the shard, its filled part as long as what was seen. */
function rowsCell(scale: () => number): Cell<ShardRow> {
  const fill = h("span", { class: "rn-bar-fill rn-bar-data" });
  const track = h("span", { class: "rn-bar-track" }, fill);
  const label = h("span", { class: "rn-bar-label" });
  const node = h("td", {}, h("div", { class: "rn-bar" }, h("span", { class: "rn-bar-room" }, track), label));
  return {
    node,
    set({ shard }) {
      const { rows_seen: seen, rows_total: whole } = shard;
      const length = whole ?? seen;
      setWidth(track, shareOf(length, scale()) ?? 0);
      setWidth(fill, shareOf(seen, length) ?? 0);
      track.classList.toggle("rn-open-end", whole === null);
      setText(label, `${formatCount(seen)} / ${formatCount(whole)}`);
      const share = shareOf(seen, whole);
      setTitle(node, share === null ? "how many rows it has is unknown" : `${formatPercent(100 * share)} of the rank's rows`);
    },
  };
}
