/** A step's time as a bar of four parts, told apart by place, pattern and words. */
import { h, setText, setTitle } from "../dom";
import { formatPercent } from "../format";
import type { Split } from "../vitals";

/** The rank's own work first: where it ends compares the ranks. */
export const PARTS: readonly { part: keyof Split; words: string }[] = [
  { part: "rest", words: "compute" },
  { part: "wait", words: "data" },
  { part: "report", words: "report" },
  { part: "sync", words: "peers" },
];

export class SplitBar {
  readonly node = h("div", { class: "rn-split", attrs: { role: "img" } });
  private readonly parts = PARTS.map(({ part }) => h("span", { class: `rn-split-${part}` }));

  constructor() {
    this.node.append(...this.parts);
  }

  set(split: Split | null): void {
    this.node.classList.toggle("rn-unknown-track", split === null);
    PARTS.forEach(({ part }, i) => {
      const node = this.parts[i];
      if (node === undefined) return;
      const width = `${((split?.[part] ?? 0) * 100).toFixed(1)}%`;
      if (node.style.width !== width) node.style.width = width;
    });
    const words = split === null ? "split of the step: n/a" : splitText(split);
    setTitle(this.node, words);
    this.node.setAttribute("aria-label", words);
  }
}

/** What the patterns of a bar mean, with the shares in words. */
export class SplitLegend {
  readonly node = h("span", { class: "rn-sub rn-split-legend" });
  private readonly shares = PARTS.map(() => h("span"));

  constructor() {
    PARTS.forEach(({ part, words }, i) => {
      const share = this.shares[i] ?? "";
      this.node.append(h("span", {}, h("i", { class: `rn-split-${part}` }), `${words} `, share));
    });
  }

  set(split: Split | null): void {
    PARTS.forEach(({ part }, i) => {
      const node = this.shares[i];
      if (node !== undefined) setText(node, formatPercent(split === null ? null : split[part] * 100));
    });
  }
}

export function splitText(split: Split): string {
  return PARTS.map(({ part, words }) => `${words} ${formatPercent(split[part] * 100)}`).join(" · ");
}
