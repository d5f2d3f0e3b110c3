import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { delta, hint, run, snapshot } from "./messages";
import { openPanel, type OpenPanel } from "./open_panel";
import { blocksOf } from "../src/panels/hints";

const EVIL = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>';

let panel: OpenPanel;
beforeEach(() => {
  vi.useFakeTimers();
  panel = openPanel();
  panel.get<HTMLButtonElement>('[data-tab="hints"]').click();
});
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

const VIEW = ".rn-hints-view";
const titles = (place = ".rn-hint"): (string | null | undefined)[] =>
  panel.all(`${VIEW} ${place}`).map((node) => node.querySelector(".rn-hint-title")?.textContent);

describe("hints", () => {
  it("says what is watched while there is nothing to say", () => {
    panel.say(snapshot({ hints: [] }));
    expect(panel.get(`${VIEW} .rn-nothing`).hidden).toBe(false);
    expect(panel.text(`${VIEW} .rn-nothing`)).toContain("Nothing to point out");
    expect(panel.all(`${VIEW} .rn-nothing li`).length).toBeGreaterThan(3);
    expect(panel.get(`${VIEW} .rn-fold`).hidden).toBe(true);
  });

  it("shows level, title, ranks, evidence, threshold, fix and since when", () => {
    panel.say(snapshot({ hints: [hint()] }));
    expect(panel.get(`${VIEW} .rn-nothing`).hidden).toBe(true);
    const text = panel.text(`${VIEW} .rn-hint`);
    for (const part of [
      "warning", "Rank 1 waits 71 %", "0.086 of 0.121 s a step", "40 % of a step", "Load ahead in more processes:",
    ]) expect(text).toContain(part);
    expect(panel.get(`${VIEW} .rn-hint svg`)).not.toBeNull();
    expect(panel.text(`${VIEW} .rn-code pre`)).toBe("DataLoader(..., num_workers=4)");
    expect(panel.text(`${VIEW} .rn-hint-time`)).toMatch(/^since 40 s, for 2[5-7] s$/);
    const before = panel.text(`${VIEW} .rn-hint-time`);
    panel.wait(3_000);
    expect(panel.text(`${VIEW} .rn-hint-time`)).not.toBe(before);
  });

  it("puts active ones first, the gravest on top, and folds those that ended", () => {
    panel.say(snapshot({ hints: [
      hint({ id: "a", level: "info", title: "info" }),
      hint({ id: "b", level: "warn", title: "older", since: 1_010 }),
      hint({ id: "c", level: "error", title: "error" }),
      hint({ id: "d", level: "warn", title: "newer", since: 1_030 }),
      hint({ id: "e", level: "error", title: "over", until: 1_050 }),
    ] }));
    expect(titles(".rn-hint:not(.rn-hint-over)")).toEqual(["error", "newer", "older", "info"]);
    expect(titles(".rn-fold .rn-hint")).toEqual(["over"]);
    expect(panel.get<HTMLDetailsElement>(`${VIEW} .rn-fold`).open).toBe(false);
    expect(panel.text(`${VIEW} .rn-fold summary`)).toBe("Earlier (1)");
    expect(panel.text(`${VIEW} .rn-fold .rn-hint-time`)).toBe("from 40 s to 50 s");
    panel.say(delta(2, { hints: [hint({ id: "c", level: "error", title: "error", until: 1_060 })] }));
    expect(titles()).toEqual(["error"]);
    expect(panel.get(`${VIEW} .rn-nothing`).hidden).toBe(false);
  });

  it("keeps the nodes of a hint that did not change", () => {
    panel.say(snapshot({ hints: [hint()] }));
    const node = panel.get(`${VIEW} .rn-hint`);
    panel.say(delta(2, { hints: [hint({ id: "z", level: "error" }), hint()] }));
    expect(panel.all(`${VIEW} .rn-hint`)[1]).toBe(node);
    panel.say(delta(3, { hints: [hint({ evidence: "0.09 of 0.121 s" })] }));
    expect(panel.text(`${VIEW} .rn-hint`)).toContain("0.09 of 0.121 s");
    expect(panel.all(`${VIEW} .rn-hint`)).toHaveLength(1);
  });

  it("pins a rank that it names; of many it names a few and counts the rest", () => {
    panel.say(snapshot({ hints: [hint({ ranks: Array.from({ length: 1_000 }, (_, rank) => rank) })] }));
    const buttons = panel.all(`${VIEW} .rn-hint-ranks button`);
    expect(buttons).toHaveLength(8);
    expect(panel.text(`${VIEW} .rn-hint-ranks`)).toContain("and 992 more ranks: 8-999");
    buttons[3]?.click();
    panel.wait(200);
    expect(panel.model.sent.at(-1)).toEqual({ kind: "pin", ranks: [3] });
    expect(buttons[3]?.getAttribute("aria-pressed")).toBe("true");
    expect(buttons[2]?.getAttribute("aria-pressed")).toBe("false");
  });

  it("copies code, or selects it where the page may not copy", async () => {
    panel.say(snapshot({ hints: [hint()] }));
    const button = panel.get<HTMLButtonElement>(`${VIEW} .rn-copy`);
    const written: string[] = [];
    Object.defineProperty(navigator, "clipboard", {
      configurable: true,
      value: { writeText: (text: string) => Promise.resolve(void written.push(text)) },
    });
    button.click();
    await vi.advanceTimersByTimeAsync(10);
    expect(written).toEqual(["DataLoader(..., num_workers=4)"]);
    expect(button.textContent).toBe("copied");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(button.textContent).toBe("copy");
    Object.defineProperty(navigator, "clipboard", { configurable: true, value: undefined });
    button.click();
    await vi.advanceTimersByTimeAsync(10);
    expect(button.textContent).toContain("selected");
    expect(getSelection()?.toString()).toContain("num_workers=4");
  });

  it("shows markup as text and survives what is unknown", () => {
    panel.say(snapshot({
      run: run({ started: null }),
      hints: [hint({ title: EVIL, evidence: EVIL, threshold: "", fix: `${EVIL}\n    ${EVIL}`, ranks: [], since: null })],
    }));
    expect(panel.el.querySelector("img, script")).toBeNull();
    expect(panel.text(`${VIEW} .rn-hint-title`)).toBe(EVIL);
    expect(panel.text(`${VIEW} .rn-code pre`)).toBe(EVIL);
    expect(panel.text(`${VIEW} .rn-hint-time`)).toBe("");
    expect(panel.text(`${VIEW} .rn-hint`)).not.toContain("threshold");
  });
});

describe("a fix", () => {
  it("is paragraphs and code, blank lines inside code kept", () => {
    expect(blocksOf("Do this\nand that:\n    a = 1\n\n    if a:\n        b()\n\nThen this.\n\nAnd this.")).toEqual([
      { code: false, lines: ["Do this", "and that:"] },
      { code: true, lines: ["a = 1", "", "if a:", "    b()"] },
      { code: false, lines: ["Then this."] },
      { code: false, lines: ["And this."] },
    ]);
  });
});
