/** The trials: a row each to sort, point at, select and stop. */
import type { Context, View } from "../context";
import { h, setText, show } from "../dom";
import type { Changed, PanelState } from "../model";
import type { Trial } from "../search_wire";
import { Table } from "../table";
import { columnsKey, trialColumns, type Around } from "../trial_columns";
import type { Scene } from "../trials_shown";

export function mount(root: HTMLElement, ctx: Context): View {
  const { trials } = ctx;
  const around: Around = { quality: new Map(), best: null, goal: null, mode: null, stoppable: false, now: 0 };
  const place = h("div");
  const empty = h("div", { class: "rn-empty" });
  root.append(place, empty);

  let table: Table<Trial> | null = null;
  let columns = "";
  let selected: number | null = null;

  function update(state: PanelState, changed: Changed): void {
    const scene = trials.scene(state);
    if (scene === null) return;
    if (!changed.trials && !changed.run && !changed.choice) {
      if (changed.pointed) table?.refresh();
      return;
    }
    around.quality = scene.quality;
    around.best = scene.best;
    around.goal = scene.goal;
    around.mode = scene.search.mode;
    around.stoppable = state.run?.stoppable === true;
    around.now = state.now();
    const key = columnsKey(scene.search);
    if (table === null || key !== columns) {
      columns = key;
      table?.destroy();
      table = tableOf(scene);
      place.replaceChildren(table.node);
    }
    const any = scene.shown.length > 0;
    show(place, any);
    show(empty, !any);
    setText(empty, scene.trials.length === 0 ? "No trials yet." : "No trial matches the filter.");
    table.set(scene.shown, scene.trials);
    if (trials.selected !== selected) {
      selected = trials.selected;
      if (selected !== null) table.reveal(selected);
    }
  }

  function tableOf({ search }: Scene): Table<Trial> {
    const made = new Table<Trial>({
      label: "Trials",
      columns: trialColumns(search, around, ctx),
      key: ({ trial }) => trial,
      sort: { key: "best", direction: search.mode === "min" ? "ascending" : "descending" },
      onRow({ trial }) {
        selected = trials.selected = trial === trials.selected ? null : trial;
        ctx.chose();
      },
      onPoint: (trial) => ctx.point(trial?.trial ?? null),
      rowClass: ({ trial, state }) =>
        [
          `rn-trial-${state}`,
          trial === around.best ? "rn-best-row" : "",
          trial === trials.selected ? "rn-selected" : "",
          trial === trials.pointed ? "rn-pointed" : "",
        ].join(" "),
    });
    made.node.classList.add("rn-trials");
    return made;
  }

  return {
    update,
    destroy: () => table?.destroy(),
  };
}
