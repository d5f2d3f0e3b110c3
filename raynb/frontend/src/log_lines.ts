/** Log lines for looking through: which are shown, which match, and as what they are drawn. */
import { parseAnsi } from "./ansi";
import { h } from "./dom";
import type { LogLine } from "./wire";

/** What a line is without its colours, kept as long as its text stays. */
interface Plain {
  source: string;
  text: string;
  folded: string;
}

const plains = new WeakMap<LogLine, Plain>();

function plainOf(line: LogLine): Plain {
  const kept = plains.get(line);
  if (kept !== undefined && kept.source === line.text) return kept;
  const text = parseAnsi(line.text).map((span) => span.text).join("");
  const plain = { source: line.text, text, folded: fold(text) };
  plains.set(line, plain);
  return plain;
}

export function plainText(line: LogLine): string {
  return plainOf(line).text;
}

/** Lower case of the same length, so that places in it are places in the text. */
export function fold(text: string): string {
  const lower = text.toLowerCase();
  if (lower.length === text.length) return lower;
  let folded = "";
  for (let i = 0; i < text.length; i++) {
    const one = text.charAt(i).toLowerCase();
    folded += one.length === 1 ? one : text.charAt(i);
  }
  return folded;
}

/** Whether a line holds the words; `folded` is what `fold` made of them. */
export function matches(line: LogLine, folded: string): boolean {
  return plainOf(line).folded.includes(folded);
}

/** The line in its colours, with the words that are searched marked. */
export function renderLine(line: LogLine, folded: string): DocumentFragment {
  const fragment = document.createDocumentFragment();
  const marks = folded === "" ? [] : placesOf(plainOf(line).folded, folded);
  let at = 0;
  let mark = 0;
  for (const { text, classes } of parseAnsi(line.text)) {
    const end = at + text.length;
    const place = classes.length === 0 ? fragment : h("span", { class: classes.join(" ") });
    while (at < end) {
      while (mark < marks.length && (marks[mark]?.[1] ?? 0) <= at) mark++;
      const [from, to] = marks[mark] ?? [end, end];
      const inside = from <= at;
      const until = Math.min(end, inside ? to : from);
      const piece = text.slice(text.length - (end - at), text.length - (end - until));
      place.append(inside ? h("mark", { text: piece }) : piece);
      at = until;
    }
    if (place !== fragment) fragment.append(place);
  }
  return fragment;
}

function placesOf(text: string, word: string): [number, number][] {
  const places: [number, number][] = [];
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
    places.push([at, at + word.length]);
  }
  return places;
}

/** How many lines came after the newest that were kept, by rank. */
export function countNewer(
  logs: ReadonlyMap<number, readonly LogLine[]>,
  marks: ReadonlyMap<number, number>,
  counts: (line: LogLine) => boolean,
): number {
  let count = 0;
  for (const [rank, lines] of logs) {
    const mark = marks.get(rank) ?? -1;
    for (let i = lines.length - 1; i >= 0; i--) {
      const line = lines[i];
      if (line === undefined || line.seq <= mark) break;
      if (counts(line)) count += 1;
    }
  }
  return count;
}
