/** Golden messages with random parts replaced: decoded, taken and shown without an exception. */
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { decode } from "../src/decode";
import { LIMITS } from "../src/wire";
import { names, read } from "./golden";
import { openPanel, type OpenPanel } from "./open_panel";
import { openSearch } from "./open_search";

const EVIL = "<img src=x onerror=window.hacked=1>";
const DECODED = 400;
const SHOWN = 25;

/** mulberry32: small, and the same everywhere. */
function randomOf(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 4_294_967_296) * below);
  };
}

function deep(levels: number): unknown {
  let value: unknown = EVIL;
  for (let i = 0; i < levels; i++) value = [value];
  return value;
}

const GARBAGE: readonly (() => unknown)[] = [
  () => null, () => undefined, () => true, () => -1, () => 0, () => 1e308, () => 2 ** 53, () => NaN,
  () => -Infinity, () => "", () => EVIL, () => "x".repeat(100_000), () => "\u202e\x1b[31m\0", () => [],
  () => ({}), () => deep(2_000), () => [[]], () => new Array(30_000).fill({ rank: 0, seq: 1, text: EVIL }),
  () => Object.fromEntries(Array.from({ length: 2_000 }, (_, i) => [`${EVIL}${i}`, i])),
  () => ({ __proto__: null, constructor: EVIL, toString: 1 }), () => new DataView(new ArrayBuffer(8)),
  () => "2", () => 1.5, () => 10n, () => new Date(0), () => [EVIL, 1, null],
];

function isList(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !ArrayBuffer.isView(value);
}

/** A copy of a message with some parts replaced, removed or doubled. */
function bend(whole: unknown, random: (below: number) => number): unknown {
  const root = { message: structuredClone(whole) as unknown };
  const times = 1 + random(4);
  for (let k = 0; k < times; k++) {
    let at: Record<string, unknown> = root;
    let key = "message";
    for (let next = at[key]; isList(next) && Object.keys(next).length > 0 && random(6) > 0; next = at[key]) {
      at = next;
      const keys = Object.keys(at);
      key = keys[random(keys.length)] as string;
    }
    const what = random(8);
    if (what === 0) delete at[key];
    else if (what === 1 && Array.isArray(at)) at.push(at[Number(key)]);
    else at[key] = (GARBAGE[random(GARBAGE.length)] as () => unknown)();
  }
  return root.message;
}

describe.each(names)("%s, bent", (name) => {
  const { content, buffers } = read(name);
  let panel: OpenPanel;
  beforeEach(() => vi.useFakeTimers());
  afterEach(() => {
    panel?.close();
    vi.useRealTimers();
  });

  it("decodes, within its bounds", () => {
    const random = randomOf(6);
    for (let k = 0; k < DECODED; k++) {
      const some = buffers.filter(() => random(10) > 0);
      const { message, problems } = decode(bend(content, random), some);
      expect(problems.length).toBeLessThanOrEqual(LIMITS.problems);
      if (message === null || message.kind === "ack" || message.kind === "file") continue;
      expect(message.logs.length).toBeLessThanOrEqual(LIMITS.logs);
      expect(message.series.length).toBeLessThanOrEqual(LIMITS.series);
    }
  });

  it("is shown as text, or said to be wrong", () => {
    const random = randomOf(7);
    panel = name.startsWith("wire_tune") ? openSearch() : openPanel();
    panel.say(content, buffers);
    for (let k = 0; k < SHOWN; k++) {
      panel.say(bend(content, random), buffers);
      const tabs = panel.all(".rn-tab");
      tabs[random(tabs.length)]?.click();
      panel.wait(600);
      expect(panel.el.querySelector("img, script, iframe")).toBeNull();
    }
    panel.say(content, buffers);
    expect(panel.el.textContent).not.toBe("");
    expect(window).not.toHaveProperty("hacked");
  });
});
