import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { bands, bucket, event, hint, log, run, series, shard, snapshot, worker } from "./messages";
import { openPanel, type OpenPanel } from "./open_panel";

const EVIL = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>';

let panel: OpenPanel;
beforeEach(() => {
  vi.useFakeTimers();
  panel = openPanel();
});
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

it("markup in any text stays text", () => {
  const { series: entries, buffers } = series({ metric: `loss ${EVIL}`, buckets: [bucket(1, 1)] });
  const across = bands(buffers, { metric: `acc ${EVIL}`, buckets: [[1, 1, 0, 1, 1, 1, 2]] });
  panel.say(
    snapshot({
      run: run({
        name: EVIL,
        state: "failed",
        message: EVIL,
        storage: EVIL,
        shard_totals: { [EVIL]: 5 },
        error: { title: EVIL, rank: 0, text: EVIL, line: EVIL },
        best: { metric: EVIL, value: 1, step: 1, rank: 0 },
      }),
      workers: [
        worker(0, {
          node: EVIL, ip: EVIL, device: EVIL, note: EVIL, shards: [shard({ name: EVIL })],
          still_since: 1_000, where: `Cell In[3], line 2: ${EVIL}`, waiting_since: 1_000,
        }),
      ],
      series: entries,
      bands: across,
      focus: { pinned: [0], worst: { [`acc ${EVIL}`]: 0 } },
      hints: [hint({ id: EVIL, title: EVIL, evidence: EVIL, threshold: EVIL, fix: `    ${EVIL}\n${EVIL}` })],
      logs: [log(0, 1, EVIL), log(0, 2, `\x1b[1m${EVIL}\x1b[0m`, "err")],
      events: [event(EVIL, { level: "error" })],
    }),
    buffers,
  );
  panel.say({ v: 1, kind: EVIL });
  panel.say({ v: 2, kind: "file", rank: 0, name: EVIL, whole: false, note: EVIL }, [new ArrayBuffer(1)]);
  for (const tab of panel.all(".rn-tab")) {
    tab.click();
    panel.wait(200);
    const places = PLACES[tab.dataset["tab"] ?? ""] ?? [];
    expect(places.length, tab.dataset["tab"]).toBeGreaterThan(0);
    for (const place of [...ABOVE, ...places]) expect(panel.text(place), place).toContain(EVIL);
    expect(panel.el.querySelector("img, script, iframe, a")).toBeNull();
    for (const node of panel.el.querySelectorAll("*")) {
      expect([...node.attributes].filter(({ name }) => name.startsWith("on"))).toEqual([]);
    }
  }
  expect(panel.text('[role="alert"]')).toContain("<img src=x");
  expect(window).not.toHaveProperty("hacked");
});

/** Where the text must be seen, so that the test is about views that show it. */
const ABOVE = [".rn-name", ".rn-message", ".rn-storage", ".rn-error-title", ".rn-error-line", ".rn-error-text"];
const PLACES: Record<string, string[]> = {
  overview: [".rn-banner", ".rn-metrics", ".rn-card-name", ".rn-events"],
  workers: [".rn-workers-view"],
  data: [".rn-data-view"],
  logs: [".rn-logs-view"],
  hints: [".rn-hints-view"],
};
