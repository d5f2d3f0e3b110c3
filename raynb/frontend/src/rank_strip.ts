/** All ranks in one strip: a thin bar each, on a common scale, however many there are. */
import { h, setAttr, setText } from "./dom";
import { formatCount } from "./format";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 100;

export interface StripBar {
  rank: number;
  part: number | null;
  whole: number | null;
}

export class RankStrip {
  readonly node: HTMLElement;
  private readonly svg = document.createElementNS(NS, "svg");
  private readonly wholes = document.createElementNS(NS, "path");
  private readonly parts = document.createElementNS(NS, "path");
  private readonly readout = h("span", { class: "rn-note" });
  private bars: readonly StripBar[] = [];
  private at: number | null = null;

  /** `onRank`: a bar was clicked. */
  constructor(onRank: (rank: number) => void) {
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("class", "rn-strip");
    this.svg.setAttribute("role", "img");
    this.wholes.setAttribute("class", "rn-strip-whole");
    this.parts.setAttribute("class", "rn-strip-part");
    this.svg.append(this.wholes, this.parts);
    this.node = h("div", { class: "rn-strip-box" }, this.svg, this.readout);
    this.svg.addEventListener("pointermove", (event) => {
      const { left, width } = this.svg.getBoundingClientRect();
      const at = Math.floor(((event.clientX - left) / Math.max(1, width)) * this.bars.length);
      this.at = Math.min(this.bars.length - 1, Math.max(0, at));
      this.say();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.at = null;
      this.say();
    });
    this.svg.addEventListener("click", () => {
      const bar = this.at === null ? undefined : this.bars[this.at];
      if (bar !== undefined) onRank(bar.rank);
    });
  }

  update(bars: readonly StripBar[], scale: number): void {
    this.bars = bars;
    setAttr(this.svg, "viewBox", `0 0 ${bars.length} ${HEIGHT}`);
    setAttr(this.svg, "aria-label", `Rows seen and expected of ${bars.length} ranks; the table has the numbers`);
    // A gap between bars, where they are wide enough to have one.
    const width = bars.length > 250 ? 1 : 0.8;
    const path = (of: (bar: StripBar) => number | null): string => {
      let d = "";
      bars.forEach((bar, i) => {
        const value = of(bar);
        if (value === null || scale <= 0) return;
        const height = (HEIGHT * Math.min(1, value / scale)).toFixed(1);
        d += `M${i} ${HEIGHT}v-${height}h${width}v${height}z`;
      });
      return d;
    };
    setAttr(this.wholes, "d", path(({ whole }) => whole));
    setAttr(this.parts, "d", path(({ part }) => part));
    this.say();
  }

  private say(): void {
    const bar = this.at === null ? undefined : this.bars[this.at];
    setText(
      this.readout,
      bar === undefined
        ? `rows by rank, 0 to ${this.bars.at(-1)?.rank ?? 0}: point at a bar`
        : `rank ${bar.rank}: ${formatCount(bar.part)} of ${formatCount(bar.whole)} rows`,
    );
  }
}
