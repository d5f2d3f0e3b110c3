/** The kernel's own messages, kept in tests/golden, decode and render. */
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { decode } from "../src/decode";
import type { Update } from "../src/wire";
import { names, read } from "./golden";
import { openPanel, type OpenPanel } from "./open_panel";
import { openSearch } from "./open_search";

describe.skipIf(names.length === 0)("golden messages", () => {
  let panel: OpenPanel;
  beforeEach(() => vi.useFakeTimers());
  afterEach(() => {
    panel.close();
    vi.useRealTimers();
  });

  const complaints = (): (string | null)[] =>
    panel.all('[role="alert"]:not([hidden])').map((node) => node.textContent);

  it.each(names)("%s decodes without complaint and renders", (name) => {
    const { content, buffers } = read(name);
    panel = name.startsWith("wire_tune") ? openSearch() : openPanel();
    const { message, problems } = decode(content, buffers);
    expect(problems).toEqual([]);
    expect(message).not.toBeNull();
    panel.say(content, buffers);
    expect(complaints()).toEqual([]);
    if (message === null || message.kind === "ack" || message.kind === "file") return;
    if (message.run !== null) expect(panel.text(".rn-name")).toBe(message.run.name);
    if (message.run?.search == null) rendersRun(message);
    else rendersSearch(message);
    expect(panel.all(".rn-event")).toHaveLength(message.events.length);
    // Every other view reads it without complaint too.
    for (const tab of panel.all(".rn-tab")) {
      tab.click();
      panel.wait(600);
    }
    expect(complaints()).toEqual([]);
  });

  function rendersRun(message: Update): void {
    const ranks = new Set(message.workers.map((one) => one.rank)).size;
    if (ranks > 0 && ranks <= 16) expect(panel.all(".rn-tile")).toHaveLength(ranks);
    if (message.series.length + message.bands.length > 0) expect(panel.all(".rn-card").length).toBeGreaterThan(0);
  }

  function rendersSearch(message: Update): void {
    expect(panel.all(".rn-trials .rn-row")).toHaveLength(message.trials.length);
    const best = message.run?.search?.best ?? null;
    if (best !== null) expect(panel.text(".rn-best-card")).toContain(`trial ${best.trial}`);
  }
});
