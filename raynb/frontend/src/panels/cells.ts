/** Many ranks: a coloured cell each, drawn on one canvas, read by pointer or arrow keys. */
import { CELLS, type Cells } from "../choices";
import type { Context } from "../context";
import { h, setAttr, setOptions, setText, uniqueId } from "../dom";
import { formatPercent, formatSeconds, UNKNOWN } from "../format";
import { median, percentOf } from "../stats";
import type { Theme } from "../theme";
import { ownSeconds } from "../vitals";
import type { Worker } from "../wire";

const MAX_HEIGHT = 96;
const [MIN_PITCH, MAX_PITCH] = [5, 18];

interface Kind {
  label: string;
  /** Null where it is not known. */
  valueOf(worker: Worker): number | null;
  format(value: number | null): string;
  /** The full scale; null: from the least to the most there is. */
  scale: readonly [number, number] | null;
  /** The end to look at first. */
  bad: "low" | "high";
}

const KINDS: Record<Cells, Kind> = {
  use: { label: "device use", valueOf: ({ util }) => util, format: formatPercent, scale: [0, 100], bad: "low" },
  memory: {
    label: "device memory",
    valueOf: ({ mem_used, mem_total }) => percentOf(mem_used, mem_total),
    format: formatPercent,
    scale: [0, 100],
    bad: "high",
  },
  step: {
    label: "own time a step",
    valueOf: ownSeconds,
    format: (value) => (value === null ? UNKNOWN : formatSeconds(value)),
    scale: null,
    bad: "high",
  },
  wait: {
    label: "waiting for data",
    valueOf: ({ wait_s, step_s }) => percentOf(wait_s, step_s),
    format: formatPercent,
    scale: [0, 100],
    bad: "high",
  },
  data: {
    label: "data of the epoch seen",
    valueOf: ({ shards: [shard] }) => percentOf(shard?.rows_seen ?? null, shard?.rows_total ?? null),
    format: formatPercent,
    scale: [0, 100],
    bad: "low",
  },
};

/** From little to much, and what marks unknown, failed, worst and chosen cells. */
const LOOKS: Record<Theme, { from: Rgb; to: Rgb; unknown: string; failed: string; mark: string }> = {
  light: { from: [222, 234, 246], to: [0, 84, 150], unknown: "#9aa0a6", failed: "#c0291f", mark: "#1f2328" },
  dark: { from: [34, 48, 62], to: [120, 200, 255], unknown: "#7a828b", failed: "#ff7b72", mark: "#e6e8eb" },
};
type Rgb = readonly [number, number, number];

export class CellMap {
  readonly node: HTMLElement;
  private readonly select = h("select", { attrs: { "data-lm-suppress-shortcuts": "true" } });
  private readonly canvas = h("canvas", {
    class: "rn-cells",
    attrs: { tabindex: "0", role: "application", "data-lm-suppress-shortcuts": "true" },
  });
  private readonly scale = h("span", { class: "rn-cells-scale" }, h("span"), h("i"), h("span"));
  private readonly summary = h("span", { class: "rn-note" });
  private readonly readout = h("span", { class: "rn-readout", attrs: { "aria-live": "polite" } });
  private readonly resizer: ResizeObserver | null;
  private workers: Worker[] = [];
  private at: number | null = null;
  private columns = 1;
  private pitch = MAX_PITCH;
  private width = 0;

  constructor(private readonly ctx: Context) {
    const id = uniqueId("cells");
    this.select.id = id;
    const label = h("label", { class: "rn-key", text: "ranks by", attrs: { for: id } });
    this.node = h(
      "div",
      { class: "rn-cells-box" },
      h("div", { class: "rn-toolbar" }, label, this.select, this.scale, this.summary, this.readout),
      this.canvas,
    );
    setOptions(this.select, CELLS.map((value) => ({ value, label: KINDS[value].label })), "use");
    this.select.addEventListener("change", () => {
      ctx.choices.cells = CELLS.find((one) => one === this.select.value) ?? "use";
      ctx.chose();
    });
    this.listen();
    this.resizer =
      typeof ResizeObserver === "function" ? new ResizeObserver(() => this.fit()) : null;
    this.resizer?.observe(this.node);
  }

  update(workers: ReadonlyMap<number, Worker>): void {
    this.workers = [...workers.values()].sort((a, b) => a.rank - b.rank);
    this.draw();
  }

  destroy(): void {
    this.resizer?.disconnect();
  }

  private get kind(): Kind {
    return KINDS[this.ctx.choices.cells];
  }

  private fit(): void {
    const width = this.node.clientWidth;
    if (width > 0 && width !== this.width) this.draw();
  }

  private draw(): void {
    const { kind, workers } = this;
    setOptions(
      this.select,
      CELLS.map((value) => ({ value, label: KINDS[value].label })),
      this.ctx.choices.cells,
    );
    const values = workers.map((worker) => kind.valueOf(worker));
    const finite = values.filter((value) => value !== null);
    const least = finite.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
    const most = finite.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const [from, to] = kind.scale ?? (finite.length > 0 ? [least, most] : [0, 1]);
    const worst = finite.length > 0 && least < most ? values.indexOf(kind.bad === "low" ? least : most) : -1;

    const [low, , high] = this.scale.children;
    if (low !== undefined) setText(low, finite.length > 0 ? kind.format(from) : "");
    if (high !== undefined) setText(high, finite.length > 0 ? kind.format(to) : "");
    const middle = median(values);
    const extreme = workers[worst];
    setText(
      this.summary,
      `median ${kind.format(middle)}` +
        (extreme === undefined
          ? ""
          : ` · ${kind.bad === "low" ? "least" : "most"}: rank ${extreme.rank}, ${kind.format(values[worst] ?? null)}`),
    );
    setAttr(
      this.canvas,
      "aria-label",
      `${kind.label} of ${workers.length} ranks, ${this.summary.textContent}. Arrow keys read ranks, Enter pins one.`,
    );
    this.paint(values, from, to, worst);
    this.say();
  }

  private paint(values: (number | null)[], from: number, to: number, worst: number): void {
    this.layOut();
    const ctx = this.canvas.getContext("2d");
    if (ctx === null) return;
    const look = LOOKS[this.ctx.theme()];
    const size = this.pitch - (this.pitch > 7 ? 2 : 1);
    const { pinned } = this.ctx.choices;
    ctx.clearRect(0, 0, this.canvas.width, this.canvas.height);
    values.forEach((value, i) => {
      const [x, y] = this.place(i);
      const worker = this.workers[i];
      if (worker?.status === "failed") {
        cross(ctx, x, y, size, look.failed);
        return;
      }
      if (value === null) {
        ctx.strokeStyle = look.unknown;
        ctx.lineWidth = 1;
        ctx.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
        return;
      }
      const part = to > from ? Math.min(1, Math.max(0, (value - from) / (to - from))) : 1;
      ctx.fillStyle = `rgb(${look.from.map((c, k) => Math.round(c + ((look.to[k] ?? c) - c) * part)).join()})`;
      ctx.fillRect(x, y, size, size);
    });
    ctx.strokeStyle = look.mark;
    ctx.lineWidth = 1.5;
    this.workers.forEach((worker, i) => {
      const marked = i === worst || i === this.at || pinned.has(worker.rank);
      if (!marked) return;
      const [x, y] = this.place(i);
      ctx.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
    });
  }

  /** The largest cells that fit; a canvas is as sharp as the screen. */
  private layOut(): void {
    const width = this.node.clientWidth || 640;
    this.width = width;
    const count = Math.max(1, this.workers.length);
    this.pitch = MAX_PITCH;
    while (
      this.pitch > MIN_PITCH &&
      Math.ceil(count / Math.floor((width - 2) / this.pitch)) * this.pitch > MAX_HEIGHT
    ) {
      this.pitch -= 1;
    }
    this.columns = Math.max(1, Math.floor((width - 2) / this.pitch));
    const height = Math.ceil(count / this.columns) * this.pitch + 2;
    const ratio = globalThis.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.height = `${height}px`;
    }
    this.canvas.getContext("2d")?.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  private place(i: number): [x: number, y: number] {
    return [1 + (i % this.columns) * this.pitch, 1 + Math.floor(i / this.columns) * this.pitch];
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      const column = Math.floor((event.offsetX - 1) / this.pitch);
      const i = Math.floor((event.offsetY - 1) / this.pitch) * this.columns + column;
      this.point(column < this.columns && this.workers[i] !== undefined ? i : null);
    });
    for (const leaves of ["pointerleave", "blur"]) canvas.addEventListener(leaves, () => this.point(null));
    canvas.addEventListener("click", () => this.pin());
    canvas.addEventListener("keydown", (event) => {
      const moves: Record<string, number> = {
        ArrowLeft: -1,
        ArrowRight: 1,
        ArrowUp: -this.columns,
        ArrowDown: this.columns,
      };
      const by = moves[event.key];
      if (by !== undefined) {
        const to = (this.at ?? (by > 0 ? -by : this.workers.length)) + by;
        this.point(Math.min(this.workers.length - 1, Math.max(0, to)));
      } else if (event.key === "Enter" || event.key === " ") this.pin();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  private pin(): void {
    const worker = this.at === null ? undefined : this.workers[this.at];
    if (worker !== undefined) this.ctx.pin(worker.rank);
  }

  private point(at: number | null): void {
    if (at === this.at) return;
    this.at = at;
    this.draw();
  }

  private say(): void {
    const worker = this.at === null ? undefined : this.workers[this.at];
    if (worker === undefined) {
      setText(this.readout, "");
      return;
    }
    const { kind } = this;
    const failed = worker.status === "running" ? "" : `, ${worker.status}`;
    const pinned = this.ctx.choices.pinned.has(worker.rank) ? "click: unpin" : "click: pin";
    setText(this.readout, `rank ${worker.rank}: ${kind.format(kind.valueOf(worker))}${failed} (${pinned})`);
  }
}

function cross(ctx: CanvasRenderingContext2D, x: number, y: number, size: number, colour: string): void {
  ctx.strokeStyle = colour;
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.moveTo(x + 1, y + 1);
  ctx.lineTo(x + size - 1, y + size - 1);
  ctx.moveTo(x + 1, y + size - 1);
  ctx.lineTo(x + size - 1, y + 1);
  ctx.stroke();
}
