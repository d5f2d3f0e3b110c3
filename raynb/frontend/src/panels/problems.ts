/** What went wrong between kernel and panel, so that nothing fails in silence. */
import type { View } from "../context";
import { h, setText, show } from "../dom";
import { icon } from "../icons";
import type { PanelState } from "../model";

export function mount(root: HTMLElement): View {
  const text = h("span");
  root.setAttribute("role", "alert");
  root.append(icon("warn"), text);
  root.hidden = true;

  function update(state: PanelState): void {
    const newest = state.problems.at(-1);
    show(root, newest !== undefined);
    if (newest === undefined) return;
    const more = state.problems.length - 1;
    setText(text, `${newest}${more > 0 ? ` (and ${more} more)` : ""}`);
    root.title = state.problems.join("\n");
  }

  return { update };
}
