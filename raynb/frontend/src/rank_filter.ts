/**
 * The filter box over ranks: "3, 7-12, node-b waiting".
 *
 * Commas separate alternatives; all words of an alternative must hold. A number
 * or a range is about the rank, any other word about the rank's texts.
 */

export interface Filtered {
  rank: number;
  /** What words may be found in: node, status, device. */
  texts: readonly (string | null)[];
}

export type RankFilter = (of: Filtered) => boolean;

const RANGE = /^(\d+)(?:(?:-|\.\.|–)(\d+))?$/;

/** Null for a filter that says nothing. */
export function parseRankFilter(input: string): RankFilter | null {
  const alternatives = input
    .split(",")
    .map((part) => part.trim().split(/\s+/).filter((word) => word !== "" && !/^ranks?$/i.test(word)))
    .filter((words) => words.length > 0)
    .map((words) => words.map(testOf));
  if (alternatives.length === 0) return null;
  return (of) => alternatives.some((tests) => tests.every((test) => test(of)));
}

function testOf(word: string): RankFilter {
  const range = RANGE.exec(word);
  if (range !== null) {
    const from = Number(range[1]);
    const to = range[2] === undefined ? from : Number(range[2]);
    return ({ rank }) => rank >= Math.min(from, to) && rank <= Math.max(from, to);
  }
  const wanted = word.toLowerCase();
  return ({ texts }) => texts.some((text) => text?.toLowerCase().includes(wanted) === true);
}
