/** The gravest hint in one line, with the way to all of them. */
import type { Context, View } from "../context";
import { h, setAttr, setText, setTitle, show } from "../dom";
import { icon } from "../icons";
import type { Changed, PanelState } from "../model";

export function mount(root: HTMLElement, ctx: Context): View {
  const level = h("span", { class: "rn-badge" });
  const title = h("span", { class: "rn-banner-title" });
  const more = h("button", { attrs: { type: "button" } });
  const line = h("div", {}, level, title, more);
  root.setAttribute("role", "status");
  root.append(line);
  root.hidden = true;
  more.addEventListener("click", () => ctx.open("hints"));

  function update(state: PanelState, changed: Changed): void {
    if (!changed.hints) return;
    const hints = state.activeHints().filter((hint) => hint.level !== "info");
    const [first] = hints;
    show(root, first !== undefined);
    if (first === undefined) return;
    const grave = first.level === "error";
    setAttr(line, "class", `rn-banner rn-banner-${first.level}`);
    const words = grave ? "problem" : "hint";
    if (level.textContent !== words) {
      level.className = `rn-badge rn-tone-${grave ? "bad" : "busy"}`;
      level.replaceChildren(icon(grave ? "cross" : "warn"), words);
    }
    setText(title, first.title);
    setTitle(title, [first.title, first.evidence, first.fix].filter((one) => one !== "").join("\n"));
    const others = hints.length - 1;
    setText(more, others > 0 ? `what to do (and ${others} more)` : "what to do");
  }

  return { update };
}
