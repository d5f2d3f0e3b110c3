/** Reading values that may be anything: what is not of the wanted shape is null. */
import { LIMITS } from "./wire";

export type Fields = Record<string, unknown>;

/** Collects what was wrong with a message, bounded. */
export class Problems {
  readonly list: string[] = [];

  add(text: string): void {
    if (this.list.length < LIMITS.problems) this.list.push(text);
  }
}

/** Decodes a list item by item; what cannot be decoded is left out and said. */
export function items<T>(
  fields: Fields,
  name: string,
  limit: number,
  problems: Problems,
  decodeOne: (item: Fields, problems: Problems) => T | null,
): T[] {
  const list = fields[name];
  if (list === undefined || list === null) return [];
  if (!Array.isArray(list)) {
    problems.add(`"${name}" should be a list, not ${describe(list)}`);
    return [];
  }
  if (list.length > limit) {
    problems.add(`"${name}" has ${list.length} entries; the last ${limit} are shown`);
  }
  const decoded: T[] = [];
  for (const item of list.slice(-limit)) {
    const itemFields = asFields(item);
    const one = itemFields === null ? null : decodeOne(itemFields, problems);
    if (one === null) problems.add(`an entry of "${name}" is not understood`);
    else decoded.push(one);
  }
  return decoded;
}

export function asFields(value: unknown): Fields | null {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Fields)
    : null;
}

export function text(value: unknown, limit: number = LIMITS.text): string | null {
  if (typeof value !== "string") return null;
  return value.length > limit ? `${value.slice(0, limit)}…` : value;
}

export function number(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function integer(value: unknown): number | null {
  return typeof value === "number" && Number.isSafeInteger(value) ? value : null;
}

export function oneOf<T extends string>(known: readonly T[], value: unknown): T | null {
  return known.find((one) => one === value) ?? null;
}

/** A short, printable form of a value that should not have been there. */
export function describe(value: unknown): string {
  if (value === undefined) return "nothing";
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object" && value !== null) return "an object";
  const shown = typeof value === "string" ? `"${value}"` : String(value);
  return shown.length > 60 ? `${shown.slice(0, 59)}…` : shown;
}
