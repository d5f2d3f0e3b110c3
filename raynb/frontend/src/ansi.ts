/**
 * Terminal text to DOM: colours and styles (SGR) become spans with classes,
 * every other escape sequence and control character is dropped.
 */
import { h } from "./dom";

interface Style {
  fg: number | null;
  bg: number | null;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
}

const PLAIN: Style = {
  fg: null,
  bg: null,
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  inverse: false,
};

export interface Span {
  text: string;
  classes: string[];
}

// In order: CSI; OSC, DCS and the like up to their end (or the line's);
// any other two-byte escape; other control characters but tab and newline.
const ESCAPES =
  /\x1b\[([0-9:;<=>?]*)[ -/]*([@-~])|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

export function parseAnsi(text: string): Span[] {
  const spans: Span[] = [];
  let style = PLAIN;
  let from = 0;
  const push = (to: number): void => {
    if (to > from) spans.push({ text: text.slice(from, to), classes: classesOf(style) });
  };
  for (const match of text.matchAll(ESCAPES)) {
    push(match.index);
    from = match.index + match[0].length;
    if (match[2] === "m") style = applySgr(style, match[1] ?? "");
  }
  push(text.length);
  return spans;
}

/** The text with its styles; plain text makes no span. */
export function renderAnsi(text: string): DocumentFragment {
  const fragment = document.createDocumentFragment();
  for (const span of parseAnsi(text)) {
    fragment.append(
      span.classes.length === 0
        ? document.createTextNode(span.text)
        : h("span", { class: span.classes.join(" "), text: span.text }),
    );
  }
  return fragment;
}

export function stripAnsi(text: string): string {
  return text.replace(ESCAPES, "");
}

function applySgr(style: Style, params: string): Style {
  const next = { ...style };
  const codes = params.split(/[;:]/).map((code) => (code === "" ? 0 : Number(code)));
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i] ?? 0;
    if (code === 0) Object.assign(next, PLAIN);
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 7) next.inverse = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code === 27) next.inverse = false;
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code === 39) next.fg = null;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code === 49) next.bg = null;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 38 || code === 48) {
      const [colour, used] = extendedColour(codes.slice(i + 1));
      if (code === 38) next.fg = colour;
      else next.bg = colour;
      i += used;
    }
  }
  return next;
}

/**
 * 256 and true colours become the nearest of the sixteen: those are styled for
 * light and dark, so the text stays readable in both.
 */
function extendedColour(codes: number[]): [number | null, number] {
  const [mode, a = 0, b = 0, c = 0] = codes;
  if (mode === 2) return [nearest(a, b, c), 4];
  if (mode !== 5) return [null, codes.length];
  if (a < 16) return [a, 2];
  if (a >= 232) {
    const grey = 8 + (a - 232) * 10;
    return [nearest(grey, grey, grey), 2];
  }
  const cube = a - 16;
  const level = (part: number): number => (part === 0 ? 0 : 55 + part * 40);
  return [nearest(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)), 2];
}

function nearest(r: number, g: number, b: number): number {
  const bright = Math.max(r, g, b) > 200;
  const threshold = Math.max(r, g, b) / 2;
  if (Math.max(r, g, b) < 50) return 0;
  const bits = (r > threshold ? 1 : 0) | (g > threshold ? 2 : 0) | (b > threshold ? 4 : 0);
  if (bits === 7) return bright ? 15 : Math.max(r, g, b) > 110 ? 7 : 8;
  return bits + (bright ? 8 : 0);
}

function classesOf(style: Style): string[] {
  const classes: string[] = [];
  if (style.fg !== null) classes.push(`ansi-fg-${style.fg}`);
  if (style.bg !== null) classes.push(`ansi-bg-${style.bg}`);
  for (const name of ["bold", "dim", "italic", "underline", "inverse"] as const) {
    if (style[name]) classes.push(`ansi-${name}`);
  }
  return classes;
}
