/** Is it learning, is each device busy, does each worker get its share, what should I do? */
import type { Context, View } from "../context";
import { h } from "../dom";
import type { Changed, PanelState } from "../model";
import * as banner from "./banner";
import * as chartPanel from "./chart_panel";
import * as devices from "./devices";

export function mount(root: HTMLElement, ctx: Context): View {
  const parts = [banner, chartPanel, devices].map(({ mount: mountPart }) => {
    const part = h("div");
    root.append(part);
    return mountPart(part, ctx);
  });

  function update(state: PanelState, changed: Changed): void {
    for (const part of parts) part.update(state, changed);
  }

  return {
    update,
    destroy() {
      for (const part of parts) part.destroy?.();
    },
  };
}
