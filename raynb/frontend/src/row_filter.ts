/**
 * The filter box over ranks or trials: "3, 7-12, node-b waiting, lr<1e-3".
 *
 * Commas separate alternatives; all words of an alternative must hold. A number
 * or a range is about the rank or trial, a comparison about a value by name, any
 * other word about its texts.
 */

export type FilterValue = number | string | boolean | null;

export interface Filtered {
  number: number;
  /** What words may be found in: node, status, device. */
  texts: readonly (string | null)[];
  /** A value by its name; undefined where there is none of this name. */
  value?(name: string): FilterValue | undefined;
}

export type RowFilter = (of: Filtered) => boolean;

const RANGE = /^(\d+)(?:(?:-|\.\.|–)(\d+))?$/;
const COMPARISON = /^([^\s<>=!]+)(<=|>=|!=|<|>|=)(.+)$/;

/** Null for a filter that says nothing. */
export function parseFilter(input: string): RowFilter | null {
  const alternatives = input
    .split(",")
    .map((part) => part.trim().split(/\s+/).filter((word) => word !== "" && !/^(rank|trial)s?$/i.test(word)))
    .filter((words) => words.length > 0)
    .map((words) => words.map(testOf));
  if (alternatives.length === 0) return null;
  return (of) => alternatives.some((tests) => tests.every((test) => test(of)));
}

function testOf(word: string): RowFilter {
  const range = RANGE.exec(word);
  if (range !== null) {
    const from = Number(range[1]);
    const to = range[2] === undefined ? from : Number(range[2]);
    return ({ number }) => number >= Math.min(from, to) && number <= Math.max(from, to);
  }
  const [, name, sign, wanted] = COMPARISON.exec(word) ?? [];
  if (name !== undefined && sign !== undefined && wanted !== undefined) {
    return ({ value }) => compares(value?.(name), sign, wanted);
  }
  const lower = word.toLowerCase();
  return ({ texts }) => texts.some((text) => text?.toLowerCase().includes(lower) === true);
}

function compares(value: FilterValue | undefined, sign: string, wanted: string): boolean {
  if (value === undefined || value === null) return false;
  const number = Number(wanted);
  if (typeof value === "number" && !Number.isNaN(number)) {
    if (sign === "=") return value === number;
    if (sign === "!=") return value !== number;
    return sign.startsWith("<")
      ? value < number || (sign === "<=" && value === number)
      : value > number || (sign === ">=" && value === number);
  }
  const same = String(value).toLowerCase() === wanted.toLowerCase();
  return sign === "=" ? same : sign === "!=" && !same;
}
