/** Brushing an axis: how a drag becomes a range, in places from 0 to 1; no DOM. */

export type Range = readonly [from: number, to: number];

export type Grip = "new" | "move" | "from" | "to";

export interface Drag {
  grip: Grip;
  start: number;
  /** The range when the drag began. */
  range: Range | null;
}

/** What a pointer gets hold of: `near` is how far an end reaches. */
export function gripAt(place: number, range: Range | null, near: number): Grip {
  if (range === null) return "new";
  const [from, to] = range;
  // Where both ends are near, the one on the pointer's side of the middle.
  const upper = place > (from + to) / 2;
  if (upper && Math.abs(place - to) <= near) return "to";
  if (!upper && Math.abs(place - from) <= near) return "from";
  return place > from && place < to ? "move" : "new";
}

/** The range while the pointer is at `place`; null: too small to be meant. */
export function dragged({ grip, start, range }: Drag, place: number, least: number): Range | null {
  const at = clamp(place);
  if (grip === "new" || range === null) return ordered(clamp(start), at, least);
  const [from, to] = range;
  if (grip === "from") return ordered(at, to, least);
  if (grip === "to") return ordered(from, at, least);
  const by = Math.min(1 - to, Math.max(-from, place - start));
  return [from + by, to + by];
}

/** Moves or, with `grow`, widens a range by a key; an axis without one gets its middle. */
export function nudged(range: Range | null, by: number, grow: boolean): Range {
  if (range === null) return [0.25, 0.75];
  const [from, to] = range;
  if (grow) return [clamp(from - by), clamp(to + by)];
  const moved = Math.min(1 - to, Math.max(-from, by));
  return [from + moved, to + moved];
}

function ordered(a: number, b: number, least: number): Range | null {
  return Math.abs(a - b) < least ? null : [Math.min(a, b), Math.max(a, b)];
}

function clamp(place: number): number {
  return Math.min(1, Math.max(0, place));
}
