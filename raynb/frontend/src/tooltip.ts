/** The values under the pointer, in a small box beside it. */
import { h, setText, show } from "./dom";
import { swatch } from "./icons";
import type { LineStyle } from "./palette";

export interface TooltipRow {
  style: LineStyle & { width: number };
  label: string;
  value: string;
}

interface Row {
  node: HTMLElement;
  label: HTMLElement;
  value: HTMLElement;
  style: string;
}

export class Tooltip {
  readonly node = h("div", { class: "rn-tooltip", attrs: { "aria-hidden": "true" } });
  private readonly heading = h("div", { class: "rn-tooltip-head" });
  private readonly more = h("div", { class: "rn-note" });
  private readonly rows: Row[] = [];

  constructor() {
    this.node.append(this.heading, this.more);
    this.node.hidden = true;
  }

  /** `left` and `width` in pixels of the box around the tooltip. */
  show(left: number, width: number, heading: string, rows: TooltipRow[], more: string): void {
    setText(this.heading, heading);
    setText(this.more, more);
    rows.forEach((row, i) => this.fill(i, row));
    this.rows.forEach(({ node }, i) => show(node, i < rows.length));
    show(this.node, true);
    // On the side with more room, off the pointer; inside the box where it fits.
    const own = this.node.offsetWidth;
    const wanted = left < width / 2 ? left + 14 : left - 14 - own;
    const inside = Math.max(0, Math.min(wanted, width - own));
    this.node.style.left = `${Math.round(inside)}px`;
  }

  hide(): void {
    show(this.node, false);
  }

  private fill(i: number, { style, label, value }: TooltipRow): void {
    let row = this.rows[i];
    if (row === undefined) {
      const [labelNode, valueNode] = [h("span"), h("span", { class: "rn-value" })];
      const node = h("div", { class: "rn-tooltip-row" }, swatch("", [], 1), labelNode, valueNode);
      row = { node, label: labelNode, value: valueNode, style: "" };
      this.rows.push(row);
      this.more.before(node);
    }
    const look = JSON.stringify(style);
    if (look !== row.style) {
      row.style = look;
      row.node.firstElementChild?.replaceWith(swatch(style.stroke, style.dash, style.width));
    }
    setText(row.label, label);
    setText(row.value, value);
  }
}
