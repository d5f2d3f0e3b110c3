import { beforeEach, describe, expect, it } from "vitest";
import { MAX_ALL_LOG_LINES, MAX_EVENTS, MAX_LOG_LINES, MAX_METRICS, PanelState } from "../src/model";
import { decode } from "../src/decode";
import {
  bands, bucket, delta, event, hint, log, run, series, shard, snapshot, worker, type BandsPart, type Part,
} from "./messages";

let state: PanelState;
beforeEach(() => {
  state = new PanelState(() => 5_000);
});

function apply(content: object, parts: Part[] = [], across: BandsPart[] = []): ReturnType<PanelState["apply"]> {
  const { series: entries, buffers } = series(...parts);
  const bandEntries = bands(buffers, ...across);
  const { message } = decode({ ...content, series: entries, bands: bandEntries }, buffers);
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

describe("partial rows", () => {
  it("change what they name and leave the rest", () => {
    apply(snapshot({ workers: [worker(0), worker(1)] }));
    const untouched = state.workers.get(1);
    const before = state.workers.get(0);
    apply(delta(2, { workers: [{ rank: 0, util: null, step: 9, shards: [] }] }));
    expect(state.workers.get(0)).toEqual({ ...worker(0), util: null, step: 9, shards: [] });
    // Identity tells views which rows changed.
    expect(state.workers.get(0)).not.toBe(before);
    expect(state.workers.get(1)).toBe(untouched);
  });

  it("of a worker never seen leave all else unknown", () => {
    apply(snapshot());
    apply(delta(2, { workers: [{ rank: 7, util: 3 }] }));
    expect(state.workers.get(7)).toMatchObject({ rank: 7, util: 3, status: "unknown", step: null, device: "n/a", shards: [] });
  });

  it("come to the same as the whole row", () => {
    apply(snapshot({ workers: [worker(0, { status: "starting", shards: [], step: null })] }));
    apply(delta(2, { workers: [{ rank: 0, status: "running", shards: [shard()] }] }));
    apply(delta(3, { workers: [{ rank: 0, step: 1_240 }] }));
    expect(state.workers.get(0)).toEqual(worker(0));
  });
});

describe("bands", () => {
  const many = run({ detail: "bands", world_size: 1_000 });
  const focus = (pinned: number[], worst: object): object => ({ focus: { pinned, worst } });
  const held = (metric = "loss"): number[] => [...(state.series.get(metric)?.keys() ?? [])];

  it("grow and merge as series do, an attempt apart", () => {
    apply(snapshot({ run: many }), [], [{ buckets: [[1, 0, 0, 5, 4, 6, 9], [2, 0, 0, 4, 3, 5, 9]] }]);
    apply(delta(2), [], [{ start: 1, buckets: [[3, 0, 0, 3, 2, 4, 9]] }, { attempt: 1, buckets: [[2, 0, 0, 9, 9, 9, 9]] }]);
    const [first, second] = state.bands.get("loss") ?? [];
    expect([...(first?.column("median") ?? [])]).toEqual([5, 3]);
    expect(second?.attempt).toBe(1);
    expect(second?.newest("count")).toBe(9);
    expect(state.metrics()).toEqual(["loss"]);
    expect(state.incomplete).toBe(false);
    apply(delta(3), [], [{ start: 7, buckets: [[9, 0, 0, 1, 1, 1, 9]] }]);
    expect(state.incomplete).toBe(true);
  });

  it("leave series to the ranks in focus only", () => {
    apply(snapshot({ run: many, ...focus([4], { loss: 7 }) }), [4, 7, 9].map((rank) => ({ rank, buckets: [bucket(1, rank)] })));
    expect(held()).toEqual([4, 7]);
    apply(delta(2, focus([], { loss: 8 })), [{ rank: 8, buckets: [bucket(1, 8)] }]);
    expect(held()).toEqual([8]);
    expect(state.focus).toEqual({ pinned: [], worst: new Map([["loss", 8]]) });
  });

  it("do not make a run of few ranks forget", () => {
    apply(snapshot(), [{ rank: 0, buckets: [bucket(1, 1)] }]);
    apply(delta(2, focus([], {})));
    expect(held()).toEqual([0]);
  });

  it("count towards the bound of metrics", () => {
    const names = Array.from({ length: MAX_METRICS + 5 }, (_, i) => `m${i}`);
    apply(snapshot({ run: many }), [], names.map((metric) => ({ metric, buckets: [[1, 0, 0, 1, 1, 1, 9]] as const })));
    expect(state.metrics()).toHaveLength(MAX_METRICS);
    expect(state.problems.join()).toContain(`only the first ${MAX_METRICS} metrics`);
  });

  it("a metric's version grows with each change of its own", () => {
    apply(snapshot(), [{ metric: "a", buckets: [bucket(1, 1)] }, { metric: "b", buckets: [bucket(1, 1)] }]);
    const before = state.versions.get("b");
    apply(delta(2), [{ metric: "a", start: 1, buckets: [bucket(2, 1)] }]);
    expect(state.versions.get("b")).toBe(before);
    expect(state.versions.get("a")).toBe((before ?? 0) + 1);
  });
});

describe("hints", () => {
  it("are replaced as a whole, stay where a delta has none, the gravest first", () => {
    apply(snapshot({ hints: [hint({ id: "a" }), hint({ id: "b", level: "error" }), hint({ id: "c", until: 5 })] }));
    expect(state.activeHints().map(({ id }) => id)).toEqual(["b", "a"]);
    expect(apply(delta(2)).hints).toBe(false);
    expect(state.hints).toHaveLength(3);
    expect(apply(delta(3, { hints: [] })).hints).toBe(true);
    expect(state.hints).toEqual([]);
  });
});

describe("logs and events", () => {
  it("keep the last lines of all ranks together", () => {
    apply(snapshot({ logs: Array.from({ length: 100 }, (_, rank) => Array.from({ length: 150 }, (_, i) => log(rank, i, "x"))).flat() }));
    expect(state.allLogs).toHaveLength(MAX_ALL_LOG_LINES);
    expect(state.allLogs.at(-1)?.rank).toBe(99);
    expect(state.logs.get(0)).toHaveLength(150);
  });


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
    expect(state.allLogs).toHaveLength(MAX_LOG_LINES + 21);
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

it("a delta of 1,000 rows and bands takes little of a frame", () => {
  const rows = Array.from({ length: 1_000 }, (_, rank) => worker(rank));
  const buffers: DataView[] = [];
  const entries = Array.from({ length: 8 }, (_, i) => ({ metric: `m${i}`, buckets: [[1, 0, 0, 1, 1, 1, 9]] as const }));
  const across = bands(buffers, ...entries);
  const whole = JSON.parse(JSON.stringify({ workers: rows, bands: across })) as object;
  const took = Array.from({ length: 20 }, (_, i) => {
    const begun = performance.now();
    const { message } = decode(delta(i + 2, whole), buffers);
    if (message?.kind === "delta") state.apply(message);
    return performance.now() - begun;
  }).sort((a, b) => a - b);
  expect(state.workers.size).toBe(1_000);
  // The middle one: the first warm the compiler up, and a busy machine delays some.
  expect(took[10]).toBeLessThan(100);
});
