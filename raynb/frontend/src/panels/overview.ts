/** Is it learning, is each device busy, does each worker get its share, what should I do? */
import type { Context, View } from "../context";
import type { Changed, PanelState } from "../model";
import * as chartPanel from "./chart_panel";

export function mount(root: HTMLElement, ctx: Context): View {
  const charts = chartPanel.mount(root, ctx);

  function update(state: PanelState, changed: Changed): void {
    charts.update(state, changed);
  }

  return { update, destroy: () => charts.destroy?.() };
}
