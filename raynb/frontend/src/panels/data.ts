/** The Data tab: a section a loader, with totals, how even the shards are, and a row a rank. */
import type { Context, View } from "../context";
import { h, show } from "../dom";
import type { Changed, PanelState } from "../model";
import { LoaderSection, type ShardRow } from "../loader_section";

export function mount(root: HTMLElement, ctx: Context): View {
  const empty = h(
    "div",
    { class: "rn-empty" },
    "No loader yet: rows are counted of loaders from ray.train.torch.prepare_data_loader() " +
      "and of ray.train.get_dataset_shard() in the train function.",
  );
  const place = h("div", { class: "rn-loaders" });
  root.append(empty, place);
  const sections = new Map<string, LoaderSection>();

  function update(state: PanelState, changed: Changed): void {
    if (!changed.workers && !changed.choice && !changed.run) return;
    const byName = shardRows(state, ctx.choices.pinned);
    show(empty, byName.size === 0);
    for (const [name, section] of sections) {
      if (byName.has(name)) continue;
      section.destroy();
      sections.delete(name);
    }
    let i = 0;
    for (const [name, rows] of byName) {
      let section = sections.get(name);
      if (section === undefined) {
        // The first is the one trained on; more tables of many ranks can wait.
        section = new LoaderSection(name, { open: i === 0 || rows.length <= 4, onRow: (rank) => ctx.pin(rank) });
        sections.set(name, section);
      }
      if (place.children[i] !== section.node) {
        place.insertBefore(section.node, place.children[i] ?? null);
      }
      section.update(rows, state.run?.shard_totals[name] ?? null);
      i += 1;
    }
  }

  return {
    update,
    destroy() {
      for (const section of sections.values()) section.destroy();
    },
  };
}

/** Loader -> its shards by rank; the loaders that are trained on come first. */
export function shardRows(
  state: PanelState,
  pinned: ReadonlySet<number>,
): Map<string, ShardRow[]> {
  const workers = [...state.workers.values()].sort((a, b) => a.rank - b.rank);
  const byName = new Map<string, ShardRow[]>();
  const depth = workers.reduce((most, { shards }) => Math.max(most, shards.length), 0);
  for (let i = 0; i < depth; i++) {
    for (const worker of workers) {
      const shard = worker.shards[i];
      if (shard === undefined) continue;
      const row = { worker, shard, trained: i === 0, pinned: pinned.has(worker.rank) };
      // Two loaders of one name stay two.
      const before = worker.shards.slice(0, i).filter(({ name }) => name === shard.name).length;
      const name = before === 0 ? shard.name : `${shard.name} (${before + 1})`;
      const rows = byName.get(name);
      if (rows === undefined) byName.set(name, [row]);
      else rows.push(row);
    }
  }
  return byName;
}
