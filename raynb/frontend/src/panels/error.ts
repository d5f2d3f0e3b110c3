/** Why a run failed: rank, title, the notebook's line, the whole text. */
import type { View } from "../context";
import { h, setText, show } from "../dom";
import { renderAnsi, stripAnsi } from "../ansi";
import { icon } from "../icons";
import type { Changed, PanelState } from "../model";

export function mount(root: HTMLElement): View {
  const title = h("span", { class: "rn-error-title" });
  const where = h("span", { class: "rn-error-rank" });
  const line = h("pre", { class: "rn-error-line", attrs: { "aria-label": "the line that failed" } });
  const text = h("pre", {
    class: "rn-error-text",
    attrs: { tabindex: "0", "aria-label": "traceback", "data-lm-suppress-shortcuts": "true" },
  });
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Error");
  root.append(h("div", { class: "rn-error-head" }, icon("cross"), where, title), line, text);
  root.hidden = true;
  let shown = "";

  function update(state: PanelState, changed: Changed): void {
    if (!changed.run) return;
    const error = state.run?.error ?? null;
    show(root, error !== null);
    if (error === null) return;
    show(where, error.rank !== null);
    setText(where, `rank ${error.rank}`);
    setText(title, stripAnsi(error.title));
    show(line, error.line !== null);
    setText(line, stripAnsi(error.line ?? ""));
    show(text, error.text !== "");
    if (error.text !== shown) {
      shown = error.text;
      text.replaceChildren(renderAnsi(error.text));
      // The last lines of a traceback say what happened.
      text.scrollTop = text.scrollHeight;
    }
  }

  return { update };
}
