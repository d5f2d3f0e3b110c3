/** Small line icons, drawn here so that no font or emoji decides their look. */

const NS = "http://www.w3.org/2000/svg";

const PATHS = {
  check: "M3.5 8.5l3 3 6-7",
  cross: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  play: "M5 3.5l7 4.5-7 4.5z",
  pause: "M5.5 4v8M10.5 4v8",
  cut: "M4.5 3.5l6.5 6.5M11.5 3.5L5 10M4 13.2a1.7 1.7 0 100-3.4 1.7 1.7 0 000 3.4M12 13.2a1.7 1.7 0 100-3.4 1.7 1.7 0 000 3.4",
  star: "M8 2.2l1.8 3.7 4 .6-2.9 2.8.7 4L8 11.4l-3.6 1.9.7-4L2.2 6.5l4-.6z",
  stop: "M4.5 4.5h7v7h-7z",
  clock: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11M8 5v3.2l2.2 1.3",
  search: "M7 3a4 4 0 100 8 4 4 0 000-8M10 10l3 3",
  power: "M8 2.5v5M5 4.4a4.7 4.7 0 106 0",
  people: "M6 8a2.2 2.2 0 100-4.4A2.2 2.2 0 006 8M2.5 12.8a3.5 3.5 0 017 0M10.5 7.6a1.8 1.8 0 100-3.6M11.5 9.6a3 3 0 012.3 3",
  flag: "M4 13.5v-11M4 3.5h8l-2 2.5 2 2.5H4",
  again: "M12.8 8a4.8 4.8 0 11-1.4-3.4M12.8 2.6v2.6h-2.6",
  question: "M5.8 6a2.2 2.2 0 113.3 1.9c-.8.5-1.1.9-1.1 1.6M8 12v.2",
  info: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11M8 7.6v3M8 5.3v.2",
  warn: "M8 2.8l5.8 10.4H2.2zM8 6.6v3M8 11.3v.2",
} as const;

export type IconName = keyof typeof PATHS;

export function icon(name: IconName): SVGSVGElement {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "rn-icon");
  // The words beside it say the same.
  svg.setAttribute("aria-hidden", "true");
  svg.dataset["icon"] = name;
  const path = document.createElementNS(NS, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A line sample for the legend, with its colour and dashes. */
export function swatch(stroke: string, dash: readonly number[], width: number): SVGSVGElement {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", "0 0 26 8");
  svg.setAttribute("class", "rn-swatch");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(NS, "line");
  for (const [name, value] of Object.entries({ x1: 1, y1: 4, x2: 25, y2: 4 })) {
    line.setAttribute(name, String(value));
  }
  line.setAttribute("stroke", stroke);
  line.setAttribute("stroke-width", String(width));
  line.setAttribute("stroke-dasharray", dash.join(" "));
  svg.append(line);
  return svg;
}
