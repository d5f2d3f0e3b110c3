/** The run's vital signs, and each device at a glance: tiles for few ranks, cells for many. */
import type { Context, View } from "../context";
import { h, setText, setTitle, show } from "../dom";
import type { Changed, PanelState } from "../model";
import { active, busy, meanSplit, shares, slowest, stepTime, throughput, type Vital } from "../vitals";
import { CellMap } from "./cells";
import { SplitBar, SplitLegend } from "./split_bar";
import { Tiles } from "./tiles";

/** Up to so many ranks have a tile each. */
const MAX_TILES = 16;

export function mount(root: HTMLElement, ctx: Context): View {
  const use = vital("devices busy");
  const rows = vital("throughput");
  const step = vital("a step takes");
  const slow = vital("slowest");
  const data = vital("data of the epoch");
  const split = new SplitBar();
  const legend = new SplitLegend();
  step.node.classList.add("rn-vital-wide");
  step.node.append(split.node, legend.node);
  const vitals = h("div", { class: "rn-vitals" }, use.node, rows.node, step.node, slow.node, data.node);
  const tiles = new Tiles(ctx);
  const cells = new CellMap(ctx);
  root.append(vitals, tiles.node, cells.node);

  function update(state: PanelState, changed: Changed): void {
    if (!changed.workers && !changed.choice) return;
    const { workers } = state;
    show(root, workers.size > 0);
    // A run that is over shows its last values, not those of nobody.
    const training = active(workers.values());
    const shown = training.length > 0 ? training : [...workers.values()];
    use.set(busy(shown));
    rows.set(throughput(shown));
    const mean = meanSplit(shown);
    step.set(stepTime(shown));
    split.set(mean);
    legend.set(mean);
    slow.set(slowest(shown));
    data.set(shares(shown));
    const few = workers.size <= MAX_TILES;
    show(tiles.node, few);
    show(cells.node, !few);
    if (few) tiles.update(workers);
    else cells.update(workers);
  }

  return { update, destroy: () => cells.destroy() };
}

function vital(name: string): { node: HTMLElement; set(vital: Vital): void } {
  const value = h("span", { class: "rn-vital-value" });
  const note = h("span", { class: "rn-sub" });
  const node = h("div", { class: "rn-vital" }, h("span", { class: "rn-key", text: name }), value, note);
  return {
    node,
    set(shown) {
      setText(value, shown.value);
      setText(note, shown.note);
      show(note, shown.note !== "");
      setTitle(note, shown.note);
    },
  };
}
