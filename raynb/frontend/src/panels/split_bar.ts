/** A step's time as a bar of four parts, told apart by place, pattern and words. */
import { h, setTitle } from "../dom";
import { formatPercent } from "../format";
import type { Split } from "../vitals";

export const PARTS: readonly { part: keyof Split; words: string }[] = [
  { part: "wait", words: "data" },
  { part: "sync", words: "peers" },
  { part: "report", words: "report" },
  { part: "rest", words: "compute" },
];

export class SplitBar {
  readonly node = h("div", { class: "rn-split", attrs: { role: "img" } });
  private readonly parts = PARTS.map(({ part }) => h("span", { class: `rn-split-${part}` }));

  constructor() {
    this.node.append(...this.parts);
  }

  set(split: Split | null): void {
    this.node.classList.toggle("rn-unknown", split === null);
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

export function splitText(split: Split): string {
  return PARTS.map(({ part, words }) => `${words} ${formatPercent(split[part] * 100)}`).join(" · ");
}
