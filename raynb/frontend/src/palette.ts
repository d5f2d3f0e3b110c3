/**
 * Colours and dashes of ranks. The colours (after Okabe and Ito, darkened or
 * lightened for contrast) can be told apart with a colour-vision deficiency;
 * dashes differ between neighbours and between ranks that share a colour, so
 * colour is never the only sign.
 */
import type { Theme } from "./theme";

const COLOURS: Record<Theme, readonly string[]> = {
  light: ["#0072b2", "#d55e00", "#00805e", "#b0487f", "#9a6700", "#2a8fcb", "#5b4db1", "#5f5f5f"],
  dark: ["#5cb3ec", "#ff8a3d", "#2ec49b", "#e58abb", "#e6b422", "#9ad4f7", "#a99bff", "#b8b8b8"],
};

const DASHES: readonly (readonly number[])[] = [[], [8, 4], [2, 3], [9, 3, 2, 3]];

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
