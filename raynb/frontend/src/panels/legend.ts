/** The lines of all charts: a button each to switch it off, and pins for ranks. */
import type { Context } from "../context";
import { h, setAttr, setText, show } from "../dom";
import { icon, swatch } from "../icons";
import { lineStyle } from "../palette";
import type { PlotLine } from "../plot_data";

interface Chip {
  node: HTMLElement;
  button: HTMLButtonElement;
  unpin: HTMLButtonElement;
  label: HTMLElement;
  style: string;
}

export class Legend {
  readonly node = h("div", {
    class: "rn-legend",
    attrs: { role: "group", "aria-label": "Lines of the charts" },
  });
  private readonly all = h("button", {
    class: "rn-toggle",
    text: "show all",
    attrs: { type: "button" },
  });
  private readonly chips = new Map<string, Chip>();
  private keys: string[] = [];

  constructor(private readonly ctx: Context) {
    this.node.append(this.all);
    this.all.addEventListener("click", () => {
      ctx.choices.hidden.clear();
      ctx.chose();
    });
  }

  /** Takes the lines of all charts; those with the same key are one. */
  update(lines: readonly PlotLine[]): void {
    const byKey = new Map(lines.map((line) => [line.key, line]));
    this.keys = [...byKey.keys()];
    for (const [key, chip] of this.chips) {
      if (byKey.has(key)) continue;
      chip.node.remove();
      this.chips.delete(key);
    }
    const { hidden } = this.ctx.choices;
    let at = 0;
    for (const [key, line] of byKey) {
      let chip = this.chips.get(key);
      if (chip === undefined) this.chips.set(key, (chip = this.makeChip(key)));
      const place = this.node.children[at++] ?? null;
      if (place !== chip.node) this.node.insertBefore(chip.node, place);
      const look = lineStyle(line, this.ctx.theme());
      const style = JSON.stringify(look);
      if (chip.style !== style) {
        chip.style = style;
        chip.button.querySelector("svg")?.replaceWith(swatch(look.stroke, look.dash, look.width));
      }
      // Each metric has its own worst rank: the charts name them.
      setText(chip.label, line.kind === "worst" ? "worst rank" : line.label);
      setAttr(chip.button, "aria-pressed", String(!hidden.has(key)));
      show(chip.unpin, line.pinned && line.rank !== null);
      chip.unpin.value = String(line.rank ?? "");
      setAttr(chip.unpin, "aria-label", `Unpin rank ${line.rank ?? ""}`);
    }
    show(this.all, this.keys.some((key) => hidden.has(key)));
    show(this.node, byKey.size > 1 || !this.all.hidden);
  }

  private makeChip(key: string): Chip {
    const label = h("span");
    const button = h(
      "button",
      {
        class: "rn-chip",
        title: "Click: show or hide this line. Alt-click or double click: only this one.",
        attrs: { type: "button" },
      },
      swatch("currentColor", [], 2),
      label,
    );
    const unpin = h(
      "button",
      { class: "rn-unpin", title: "Unpin", attrs: { type: "button" } },
      icon("cross"),
    );
    button.addEventListener("click", (event) => {
      const { hidden } = this.ctx.choices;
      if (event.altKey) this.isolate(key);
      else if (!hidden.delete(key)) hidden.add(key);
      this.ctx.chose();
    });
    button.addEventListener("dblclick", () => {
      this.isolate(key);
      this.ctx.chose();
    });
    unpin.addEventListener("click", () => this.ctx.pin(Number(unpin.value)));
    const node = h("span", { class: "rn-chip-box" }, button, unpin);
    return { node, button, unpin, label, style: "" };
  }

  /** Only this line; where it is the only one already, all again. */
  private isolate(key: string): void {
    const { hidden } = this.ctx.choices;
    const alone = this.keys.every((one) => hidden.has(one) === (one !== key));
    hidden.clear();
    if (!alone) for (const one of this.keys) if (one !== key) hidden.add(one);
  }
}
