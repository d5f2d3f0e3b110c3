import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { bucket, event, log, run, series, snapshot, worker } from "./messages";
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
  const shard = { ...worker(0).shard, name: EVIL } as NonNullable<ReturnType<typeof worker>["shard"]>;
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
      workers: [worker(0, { node: EVIL, ip: EVIL, device: EVIL, note: EVIL, shard })],
      series: entries,
      logs: [log(0, 1, EVIL), log(0, 2, `\x1b[1m${EVIL}\x1b[0m`, "err")],
      events: [event(EVIL, { level: "error" })],
    }),
    buffers,
  );
  panel.say({ v: 1, kind: EVIL });
  expect(panel.el.querySelector("img, script, iframe, a")).toBeNull();
  for (const node of panel.el.querySelectorAll("*")) {
    expect([...node.attributes].filter(({ name }) => name.startsWith("on"))).toEqual([]);
  }
  for (const place of [
    ".rn-name", ".rn-message", ".rn-storage", ".rn-error-title", ".rn-error-line", ".rn-error-text",
    ".rn-chart-view select", ".rn-workers", ".rn-log", ".rn-events", ".rn-shard-totals",
  ]) {
    expect(panel.text(place), place).toContain(EVIL);
  }
  expect(panel.text('[role="alert"]')).toContain("<img src=x");
});
