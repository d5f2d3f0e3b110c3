/** A rectangle with two axes on a canvas: grid, ticks, and from values to pixels. */
import type { Scale } from "./scales";

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Colours and font of axes, as the page's theme has them. */
export interface Ink {
  text: string;
  strong: string;
  grid: string;
  background: string;
  font: string;
}

export function inkOf(node: Element): Ink {
  const style = getComputedStyle(node);
  const colour = (name: string, fallback: string): string => style.getPropertyValue(name).trim() || fallback;
  return {
    text: colour("--raynb-muted", "#616161"),
    strong: colour("--raynb-text", "#1f2328"),
    grid: colour("--raynb-grid", "#8883"),
    background: colour("--raynb-bg", "#fff"),
    font: colour("--raynb-font", "system-ui, sans-serif"),
  };
}

export class Plane {
  constructor(
    readonly box: Box,
    readonly x: Scale,
    readonly y: Scale,
  ) {}

  left(value: number): number {
    return this.box.left + this.x.place(value) * this.box.width;
  }

  top(value: number): number {
    return this.box.top + (1 - this.y.place(value)) * this.box.height;
  }

  holds(x: number, y: number, margin = 0): boolean {
    const { left, top, width, height } = this.box;
    return x >= left - margin && x <= left + width + margin && y >= top - margin && y <= top + height + margin;
  }

  /** Nothing is drawn outside of the box until the context is restored. */
  clip(ctx: CanvasRenderingContext2D, margin = 1): void {
    const { left, top, width, height } = this.box;
    ctx.beginPath();
    ctx.rect(left - margin, top - margin, width + 2 * margin, height + 2 * margin);
    ctx.clip();
  }

  drawAxes(ctx: CanvasRenderingContext2D, ink: Ink, space: { x: number; y: number }): void {
    const { left, top, width, height } = this.box;
    ctx.font = `11px ${ink.font}`;
    ctx.lineWidth = 1;
    ctx.strokeStyle = ink.grid;
    ctx.fillStyle = ink.text;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.beginPath();
    let room = Number.POSITIVE_INFINITY;
    for (const { at, label } of this.y.ticks(Math.max(2, height / space.y))) {
      const y = Math.round(top + (1 - at) * height) + 0.5;
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      if (room - y < 11) continue;
      room = y;
      ctx.fillText(fitText(ctx, label, left - 6), left - 6, y);
    }
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    let taken = Number.NEGATIVE_INFINITY;
    for (const { at, label } of this.x.ticks(Math.max(1, width / space.x))) {
      const x = Math.round(left + at * width) + 0.5;
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height + 3);
      const half = ctx.measureText(label).width / 2;
      if (x - half < taken + 4) continue;
      taken = x + half;
      ctx.fillText(label, x, top + height + 6);
    }
    ctx.stroke();
  }
}

const ELLIPSIS = "…";

/** The text as far as it fits. */
export function fitText(ctx: CanvasRenderingContext2D, text: string, width: number): string {
  if (ctx.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && ctx.measureText(text.slice(0, end) + ELLIPSIS).width > width) end--;
  return text.slice(0, end) + ELLIPSIS;
}
