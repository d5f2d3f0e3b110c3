/**
 * Colours and dashes of lines. The colours (after Okabe and Ito, darkened or
 * lightened for contrast) can be told apart with a colour-vision deficiency;
 * dashes differ between neighbours and between ranks that share a colour, so
 * colour is never the only sign.
 */
import type { PlotLine } from "./plot_data";
import type { Theme } from "./theme";

const COLOURS: Record<Theme, readonly string[]> = {
  light: ["#0072b2", "#d55e00", "#00805e", "#b0487f", "#9a6700", "#2a8fcb", "#5b4db1", "#5f5f5f"],
  dark: ["#5cb3ec", "#ff8a3d", "#2ec49b", "#e58abb", "#e6b422", "#9ad4f7", "#a99bff", "#b8b8b8"],
};

const DASHES: readonly (readonly number[])[] = [[], [8, 4], [2, 3], [9, 3, 2, 3]];

/** Across ranks: the median in the text's colour, the worst in that of errors. */
const ACROSS: Record<Theme, { median: string; worst: string; band: string }> = {
  light: { median: "#1f2328", worst: "#c0291f", band: "#0072b2" },
  dark: { median: "#e6e8eb", worst: "#ff7b72", band: "#5cb3ec" },
};

export interface LineStyle {
  stroke: string;
  dash: readonly number[];
}

export function rankStyle(rank: number, theme: Theme): LineStyle {
  const colours = COLOURS[theme];
  const round = Math.floor(rank / colours.length);
  return {
    stroke: colours[rank % colours.length] ?? "#888888",
    dash: DASHES[(rank + round) % DASHES.length] ?? [],
  };
}

/** The look of a line, the same in every chart, its legend and its values. */
export function lineStyle(
  { kind, rank, pinned }: PlotLine,
  theme: Theme,
): LineStyle & { width: number; fill: string } {
  const { median, worst, band } = ACROSS[theme];
  if (kind === "median") return { stroke: median, dash: [], width: 1.75, fill: `${band}33` };
  if (kind === "worst") return { stroke: worst, dash: [6, 3], width: 1.75, fill: "" };
  const style = rankStyle(rank ?? 0, theme);
  return { ...style, width: pinned ? 2.75 : 1.5, fill: `${style.stroke}1a` };
}
