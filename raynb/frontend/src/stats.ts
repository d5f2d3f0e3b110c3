/** Sums and middles over ranks, where some ranks may not know. */

export function known(values: Iterable<number | null>): number[] {
  return [...values].filter((value): value is number => value !== null);
}

/** A part as a share of a whole, 0 to 1 and more; null where either is not known. */
export function shareOf(part: number | null, whole: number | null): number | null {
  return part === null || whole === null || whole <= 0 ? null : part / whole;
}

/** The same as percent. */
export function percentOf(part: number | null, whole: number | null): number | null {
  const share = shareOf(part, whole);
  return share === null ? null : 100 * share;
}

/** The middle of what is known; null where nothing is. */
export function median(values: Iterable<number | null>): number | null {
  // Typed: it sorts numbers as numbers, and several times as fast.
  const sorted = Float64Array.from(known(values)).sort();
  const half = sorted.length >> 1;
  const upper = sorted[half];
  if (upper === undefined) return null;
  return sorted.length % 2 === 1 ? upper : ((sorted[half - 1] ?? upper) + upper) / 2;
}

/** A sum is known when all its parts are. */
export function total(values: Iterable<number | null>): number | null {
  let [sum, count] = [0, 0];
  for (const value of values) {
    if (value === null) return null;
    sum += value;
    count += 1;
  }
  return count === 0 ? null : sum;
}

/** "0-3, 7, 9": runs of neighbours in short, at most `most` of them. */
export function rankRuns(ranks: readonly number[], most = 12): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const runs: [number, number][] = [];
  for (const rank of sorted) {
    const last = runs.at(-1);
    if (last !== undefined && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const shown = runs.slice(0, most).map(([from, to]) => {
    if (from === to) return String(from);
    return to === from + 1 ? `${from}, ${to}` : `${from}-${to}`;
  });
  return shown.join(", ") + (runs.length > most ? ", …" : "");
}
