/** Canvases on top of each other, as sharp as the screen: what changes seldom is not drawn again. */
import { h } from "./dom";

/** Where there is no layout to measure. */
const UNSEEN_WIDTH = 640;

export class Layers {
  readonly node: HTMLElement;
  width = 0;
  height: number;
  private readonly canvases: HTMLCanvasElement[];
  private readonly resizer: ResizeObserver | null;

  /** Calls back when its width changed, so that all layers are drawn anew. */
  constructor(count: number, height: number, onResize: () => void) {
    this.height = height;
    this.canvases = Array.from({ length: count }, () => h("canvas", { attrs: { "aria-hidden": "true" } }));
    this.node = h(
      "div",
      {
        class: "rn-layers",
        attrs: { tabindex: "0", role: "application", "data-lm-suppress-shortcuts": "true" },
      },
      ...this.canvases,
    );
    this.resizer =
      typeof ResizeObserver === "function"
        ? new ResizeObserver(() => {
            if (this.fit()) onResize();
          })
        : null;
    this.resizer?.observe(this.node);
    this.fit();
  }

  /** Draws one layer in CSS pixels: cleared first, or on top of what it shows. */
  draw(layer: number, paint: (ctx: CanvasRenderingContext2D) => void, clear = true): void {
    const canvas = this.canvases[layer];
    const ctx = canvas?.getContext("2d") ?? null;
    if (canvas === undefined || ctx === null) return;
    const ratio = globalThis.devicePixelRatio || 1;
    const [w, hh] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== w || canvas.height !== hh) [canvas.width, canvas.height] = [w, hh];
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (clear) ctx.clearRect(0, 0, this.width, this.height);
    ctx.save();
    paint(ctx);
    ctx.restore();
  }

  /** Where an event is, in CSS pixels from the upper left corner. */
  place(event: MouseEvent): [x: number, y: number] {
    const box = this.node.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  resize(height: number): void {
    this.height = height;
    this.fit();
  }

  destroy(): void {
    this.resizer?.disconnect();
  }

  private fit(): boolean {
    const width = this.node.clientWidth || UNSEEN_WIDTH;
    const style = `${this.height}px`;
    if (this.node.style.height !== style) this.node.style.height = style;
    if (width === this.width) return false;
    this.width = width;
    return true;
  }
}
