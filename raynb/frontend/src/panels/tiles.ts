/** Few ranks: a tile each, with how busy its device is, its step's time and its data. */
import type { Context } from "../context";
import { h, setAttr, setText, show } from "../dom";
import { formatCount, formatMemory, formatPercent, formatSeconds, UNKNOWN } from "../format";
import { swatch } from "../icons";
import { rankStyle } from "../palette";
import type { Theme } from "../theme";
import { splitOf } from "../vitals";
import type { Worker } from "../wire";
import { SplitBar, splitText } from "./split_bar";

interface Tile {
  node: HTMLButtonElement;
  update(worker: Worker, pinned: boolean, theme: Theme): void;
}

export class Tiles {
  readonly node = h("div", {
    class: "rn-tiles",
    attrs: { role: "group", "aria-label": "Workers; press one to make its lines bold" },
  });
  private readonly tiles = new Map<number, Tile>();

  constructor(private readonly ctx: Context) {}

  update(workers: ReadonlyMap<number, Worker>): void {
    for (const [rank, tile] of this.tiles) {
      if (workers.has(rank)) continue;
      tile.node.remove();
      this.tiles.delete(rank);
    }
    const sorted = [...workers.values()].sort((a, b) => a.rank - b.rank);
    sorted.forEach((worker, i) => {
      let tile = this.tiles.get(worker.rank);
      if (tile === undefined) {
        tile = makeTile(worker.rank, () => this.ctx.pin(worker.rank));
        this.tiles.set(worker.rank, tile);
      }
      const place = this.node.children[i] ?? null;
      if (place !== tile.node) this.node.insertBefore(tile.node, place);
      tile.update(worker, this.ctx.choices.pinned.has(worker.rank), this.ctx.theme());
    });
  }
}

function makeTile(rank: number, onPress: () => void): Tile {
  const name = h("span", { class: "rn-tile-rank", text: `rank ${rank}` });
  const status = h("span", { class: "rn-tile-status" });
  const use = h("span", { class: "rn-value" });
  const fill = h("span", { class: "rn-bar-fill" });
  const track = h("span", { class: "rn-bar-track" }, fill);
  const split = new SplitBar();
  const step = h("span", { class: "rn-value" });
  const rows = h("span", { class: "rn-sub" });
  const node = h(
    "button",
    { class: "rn-tile", attrs: { type: "button" } },
    h("span", { class: "rn-tile-head" }, swatch("", [], 1), name, status),
    h("span", { class: "rn-bar" }, track, use),
    h("span", { class: "rn-bar" }, split.node, step),
    rows,
  );
  node.addEventListener("click", onPress);
  let shown: Worker | null = null;
  let look = "";

  return {
    node,
    update(worker, pinned, theme) {
      setAttr(node, "aria-pressed", String(pinned));
      const { stroke, dash } = rankStyle(rank, theme);
      const style = JSON.stringify([stroke, dash]);
      if (look !== style) {
        look = style;
        node.querySelector("svg")?.replaceWith(swatch(stroke, dash, 2));
      }
      if (shown === worker) return;
      shown = worker;
      const well = worker.status === "running";
      show(status, !well);
      setText(status, well ? "" : worker.status);
      status.className = `rn-tile-status rn-tone-${worker.status === "failed" ? "bad" : "busy"}`;
      const percent = worker.util;
      fill.style.width = `${Math.min(100, Math.max(0, percent ?? 0)).toFixed(1)}%`;
      track.classList.toggle("rn-unknown-track", percent === null);
      setText(use, `${worker.device_kind ?? ""} ${formatPercent(percent)}`.trim());
      split.set(splitOf(worker));
      setText(step, worker.step_s === null ? UNKNOWN : formatSeconds(worker.step_s));
      setText(rows, rowsText(worker));
      const words = wordsOf(worker);
      node.title = words;
      setAttr(node, "aria-label", words.replaceAll("\n", "; "));
    },
  };
}

function rowsText({ shards: [shard] }: Worker): string {
  if (shard === undefined) return "data n/a";
  return `${formatCount(shard.rows_seen)} / ${formatCount(shard.rows_total)} rows`;
}

function wordsOf(worker: Worker): string {
  const split = splitOf(worker);
  return [
    `rank ${worker.rank}, ${worker.status}, ${worker.device} on ${worker.node ?? worker.ip ?? UNKNOWN}`,
    `use ${formatPercent(worker.util)}, memory ${formatMemory(worker.mem_used, worker.mem_total)}`,
    `step ${formatSeconds(worker.step_s)}${split === null ? "" : `: ${splitText(split)}`}`,
    `data ${rowsText(worker)}`,
    ...(worker.note === null ? [] : [worker.note]),
    ...(worker.where === null ? [] : [`stands at ${worker.where}`]),
  ].join("\n");
}
