import { beforeEach, describe, expect, it } from "vitest";
import { MAX_EVENTS, MAX_LOG_LINES, PanelState } from "../src/model";
import { decode } from "../src/decode";
import { bucket, delta, event, log, run, series, snapshot, worker, type Part } from "./messages";

let state: PanelState;
beforeEach(() => {
  state = new PanelState(() => 5_000);
});

function apply(content: object, parts: Part[] = []): ReturnType<PanelState["apply"]> {
  const { series: entries, buffers } = series(...parts);
  const { message } = decode(parts.length > 0 ? { ...content, series: entries } : content, buffers);
  if (message === null || message.kind === "ack" || message.kind === "file") throw new Error("not an update");
  return state.apply(message);
}

function values(metric = "loss", rank = 0): number[] {
  return [...(state.series.get(metric)?.get(rank)?.[0]?.column("last") ?? [])];
}

/** Everything that views read, comparable. */
function contents(of: PanelState): unknown {
  return {
    run: of.run,
    workers: [...of.workers].sort(),
    series: [...of.series].map(([metric, byRank]) => [
      metric,
      [...byRank].map(([rank, all]) => [rank, all.map((one) => [one.attempt, [...one.column("last")], [...one.column("step")]])]),
    ]),
    logs: [...of.logs],
    all: of.allLogs,
    events: of.events,
    dropped: [...of.logsDropped],
  };
}

describe("series", () => {
  it("appends", () => {
    apply(snapshot(), [{ buckets: [bucket(1, 3)] }]);
    apply(delta(2), [{ start: 1, buckets: [bucket(2, 2), bucket(3, 1)] }]);
    expect(values()).toEqual([3, 2, 1]);
  });

  it("truncates to start, then appends: the last bucket may grow, buckets may merge", () => {
    apply(snapshot(), [{ buckets: [1, 2, 3, 4].map((step) => bucket(step, step)) }]);
    apply(delta(2), [{ start: 3, buckets: [bucket(5, 5)] }]);
    expect(values()).toEqual([1, 2, 3, 5]);
    apply(delta(3), [{ start: 0, buckets: [bucket(3, 3), bucket(5, 5)] }]);
    expect(values()).toEqual([3, 5]);
    apply(delta(4), [{ start: 1, buckets: [] }]);
    expect(values()).toEqual([3]);
  });

  it("grows past its first capacity", () => {
    apply(snapshot(), [{ buckets: [bucket(0, 0)] }]);
    for (let i = 1; i < 1_000; i++) apply(delta(i + 1), [{ start: i, buckets: [bucket(i, i)] }]);
    expect(values()).toHaveLength(1_000);
    expect(values()[999]).toBe(999);
  });

  it("keeps metrics, ranks and attempts apart", () => {
    apply(snapshot(), [
      { metric: "a", rank: 0, buckets: [bucket(1, 1)] },
      { metric: "a", rank: 1, buckets: [bucket(1, 2)] },
      { metric: "b", rank: 0, attempt: 1, buckets: [bucket(1, 3)] },
      { metric: "b", rank: 0, attempt: 0, buckets: [bucket(1, 4)] },
    ]);
    expect(state.metrics()).toEqual(["a", "b"]);
    expect(state.latest("a", 1)).toBe(2);
    expect(state.series.get("b")?.get(0)?.map((one) => one.attempt)).toEqual([0, 1]);
    expect(state.latest("b", 0)).toBe(3);
    expect(state.latest("b", 7)).toBeNull();
  });

  it("shows what comes after a hole and knows that it is incomplete", () => {
    apply(snapshot());
    apply(delta(2), [{ start: 10, buckets: [bucket(11, 7)] }]);
    expect(values()).toEqual([7]);
    expect(state.incomplete).toBe(true);
    apply(delta(3), [{ start: 11, buckets: [bucket(12, 8)] }]);
    expect(values()).toEqual([7, 8]);
    apply(snapshot({ seq: 4 }));
    apply(delta(5), [{ start: 10, buckets: [bucket(11, 7)] }]);
    state.incomplete = false;
    apply(delta(6), [{ start: 0, buckets: [bucket(5, 6), bucket(11, 7)] }]);
    expect(values()).toEqual([6, 7]);
    expect(state.incomplete).toBe(false);
  });
});

describe("snapshots and deltas", () => {
  it("come to the same", () => {
    apply(snapshot({ run: run({ state: "starting_workers" }) }));
    apply(delta(2, { workers: [worker(0), worker(1, { status: "starting" })] }), [{ buckets: [bucket(1, 2), bucket(2, 1)] }]);
    apply(delta(3, { run: run(), workers: [worker(1)], logs: [log(0, 1, "a"), log(1, 1, "b")] }), [
      { start: 1, buckets: [bucket(2, 1.5), bucket(3, 1)] },
      { rank: 1, buckets: [bucket(1, 9)] },
    ]);
    apply(delta(4, { logs: [log(0, 1, "a again")], logs_dropped: { 0: 3 }, events: [event("one")] }));
    const byDeltas = contents(state);

    state = new PanelState(() => 5_000);
    apply(
      snapshot({
        seq: 4,
        workers: [worker(0), worker(1)],
        logs: [log(0, 1, "a again"), log(1, 1, "b")],
        logs_dropped: { 0: 3 },
        events: [event("one")],
      }),
      [
        { buckets: [bucket(1, 2), bucket(2, 1.5), bucket(3, 1)] },
        { rank: 1, buckets: [bucket(1, 9)] },
      ],
    );
    expect(contents(state)).toEqual(byDeltas);
  });

  it("a snapshot replaces all that was", () => {
    apply(snapshot({ workers: [worker(0), worker(1)], logs: [log(0, 1, "old")], events: [event("old")] }), [
      { metric: "old", buckets: [bucket(1, 1)] },
    ]);
    apply(snapshot({ seq: 9, workers: [worker(0)] }));
    expect(state.workers.size).toBe(1);
    expect(state.metrics()).toEqual([]);
    expect([state.allLogs.length, state.events.length]).toEqual([0, 0]);
  });

  it("a delta that a snapshot overtook changes nothing", () => {
    apply(snapshot({ seq: 5, events: [event("one")] }));
    const changed = apply(delta(5, { events: [event("one")] }));
    expect(state.events).toHaveLength(1);
    expect(Object.values(changed).some(Boolean)).toBe(false);
  });

  it("a missing delta is noticed, a snapshot mends it", () => {
    apply(snapshot({ seq: 1 }));
    apply(delta(2));
    expect(state.incomplete).toBe(false);
    apply(delta(4));
    expect(state.incomplete).toBe(true);
    apply(snapshot({ seq: 5 }));
    expect(state.incomplete).toBe(false);
  });

  it("deltas before any snapshot are shown as far as they go", () => {
    apply(delta(7, { run: run(), workers: [worker(0)] }), [{ start: 20, buckets: [bucket(21, 4)] }]);
    expect(state.run?.name).toBe("mnist");
    expect(values()).toEqual([4]);
    expect(state.incomplete).toBe(true);
  });

  it("says which parts changed", () => {
    apply(snapshot());
    expect(apply(delta(2, { workers: [worker(0)] }))).toMatchObject({ workers: true, run: false, series: false, logs: false, events: false });
    expect(apply(delta(3, { logs: [log(0, 1, "x")] }))).toMatchObject({ workers: false, logs: true });
  });

  it("follows the kernel's clock, not the browser's", () => {
    apply(snapshot({ run: run({ started: 1_000, now: 1_065 }) }));
    expect(state.now()).toBe(1_065);
    // Late news does not turn the clock back.
    apply(delta(2, { run: run({ now: 1_040 }) }));
    expect(state.now()).toBe(1_065);
  });
});

describe("logs and events", () => {
  it("replace a line that comes again, in place", () => {
    apply(snapshot({ logs: [log(0, 1, "10 %"), log(0, 2, "next"), log(1, 1, "other")] }));
    apply(delta(2, { logs: [log(0, 1, "20 %")] }));
    expect(state.logs.get(0)?.map((line) => line.text)).toEqual(["20 %", "next"]);
    expect(state.allLogs.map((line) => line.text)).toEqual(["20 %", "next", "other"]);
  });

  it("keep the last lines of each rank", () => {
    apply(snapshot({ logs: Array.from({ length: MAX_LOG_LINES + 20 }, (_, i) => log(0, i, `${i}`)) }));
    apply(delta(2, { logs: [log(1, 0, "quiet")] }));
    expect(state.logs.get(0)).toHaveLength(MAX_LOG_LINES);
    expect(state.logs.get(0)?.[0]?.text).toBe("20");
    expect(state.logs.get(1)).toHaveLength(1);
    expect(state.allLogs).toHaveLength(MAX_LOG_LINES);
  });

  it("keep the last events and count the rest", () => {
    apply(snapshot({ events: Array.from({ length: MAX_EVENTS + 7 }, (_, i) => event(`${i}`)) }));
    expect(state.events).toHaveLength(MAX_EVENTS);
    expect(state.eventsForgotten).toBe(7);
  });

  it("report each problem once", () => {
    expect(state.report("odd")).toBe(true);
    expect(state.report("odd")).toBe(false);
  });
});
