/** Markup in anything that a search says stays text. */
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { event, log, run, series, snapshot } from "./messages";
import { curve, openSearch } from "./open_search";
import { search, searchRun, trial } from "./search_messages";
import type { OpenPanel } from "./open_panel";

const EVIL = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>';

let panel: OpenPanel;
beforeEach(() => {
  vi.useFakeTimers();
  panel = openSearch();
});
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

it("markup in any text stays text", () => {
  const { series: entries, buffers } = series(curve(0, [0.1, 0.4], EVIL), curve(1, [0.2], EVIL));
  const params = [
    { name: EVIL, kind: "choice", log: false, low: null, high: null, choices: [EVIL, "b"], text: EVIL },
    { name: "lr", kind: "float", log: true, low: 1e-5, high: 1e-2, choices: null, text: EVIL },
  ];
  const error = { title: EVIL, rank: 0, text: EVIL, line: EVIL };
  const config = { [EVIL]: EVIL, lr: 1e-3 };
  panel.say(
    snapshot({
      run: searchRun(
        { name: EVIL, state: "failed", message: EVIL, storage: EVIL, error: run({ error }).error },
        search({
          metric: EVIL, scheduler: EVIL, search: EVIL, stop: EVIL, max_concurrent: EVIL, params, metrics: [EVIL],
          best_trial: { trial: 0, id: EVIL, value: 0.4, step: 2, config, state: "failed" },
          cluster: { [EVIL]: { used: 1, total: 2 } },
        }),
      ),
      trials: [
        trial(0, { id: EVIL, name: EVIL, state: "failed", reason: EVIL, reason_kind: EVIL, error, config, last: { [EVIL]: 1 }, node: EVIL }),
        trial(1, { config }),
      ],
      series: entries,
      logs: [log(0, 1, EVIL)],
      events: [event(EVIL)],
    }),
    buffers,
  );
  panel.wait(600);
  panel.get(".rn-best-trial").click();
  panel.wait(600);
  panel.say({ kind: "ack", of: "stop_trial", trial: EVIL });
  panel.say({ v: 2, kind: "delta", seq: 2, trials: [{ trial: 1, state: EVIL }] });
  const above = [".rn-name", ".rn-message", ".rn-search-view .rn-meta", ".rn-best-card", ".rn-error-text"];
  const places: Record<string, string[]> = {
    overview: [".rn-inspector", ".rn-inspector .rn-error-line", ".rn-curves-view select", ".rn-trials thead", ".rn-trials tbody .rn-c-reason", ".rn-events"],
    parameters: [".rn-inspector", ".rn-scatters"],
    logs: [".rn-log"],
  };
  for (const tab of panel.all(".rn-tab")) {
    tab.click();
    panel.wait(600);
    for (const place of [...above, ...(places[tab.dataset["tab"] ?? ""] ?? ["none"])]) {
      expect(panel.all(place).some((node) => node.textContent?.includes(EVIL)), place).toBe(true);
    }
    const points = panel.all(".rn-layers");
    for (const plot of points) plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    panel.wait(600);
    expect(panel.el.querySelector("img, script, iframe, a")).toBeNull();
    for (const node of panel.el.querySelectorAll("*")) {
      expect([...node.attributes].filter(({ name }) => name.startsWith("on"))).toEqual([]);
    }
  }
  expect(panel.text('[role="alert"]')).toContain("<img src=x");
  expect(window).not.toHaveProperty("hacked");
});
