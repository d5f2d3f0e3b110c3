import { describe, expect, it } from "vitest";
import { decode } from "../src/decode";
import { LIMITS, MAX_PINNED, type LogFile, type Update } from "../src/wire";
import { bands, bucket, delta, hint, log, run, series, shard, snapshot, worker } from "./messages";

function update(content: unknown, buffers: readonly unknown[] = []): Update {
  const { message } = decode(content, buffers);
  if (message === null || message.kind === "ack" || message.kind === "file") throw new Error("not an update");
  return message;
}

describe("decode", () => {
  it("reads a whole snapshot without complaint", () => {
    const { series: entries, buffers } = series({ buckets: [bucket(1, 0.5), bucket(2, 0.25)] });
    const content = snapshot({
      workers: [worker(0), worker(1)],
      series: entries,
      logs: [log(0, 1, "hello")],
      logs_dropped: { "1": 4 },
      events: [{ t: 1, level: "warn", text: "slow" }],
    });
    expect(decode(content, buffers).problems).toEqual([]);
    const message = update(content, buffers);
    expect(message.run).toEqual({ ...run(), shard_totals: expect.objectContaining({ train: 60_000 }) as object });
    expect(message.workers[1]).toEqual(worker(1));
    expect([...(message.series[0]?.values ?? [])]).toEqual([1, 2, 0.1, 0.2, 0.01, 0.02, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25]);
    expect(message.logs_dropped.get(1)).toBe(4);
    expect(message.events[0]?.level).toBe("warn");
  });

  it("survives a trip through JSON", () => {
    const content: unknown = JSON.parse(JSON.stringify(snapshot({ workers: [worker(0)] })));
    expect(decode(content).problems).toEqual([]);
  });

  it("ignores fields it does not know", () => {
    const content = snapshot({ colour: "red", run: { ...run(), mood: "good" } });
    expect(decode(content).problems).toEqual([]);
    expect(update(content).run).not.toHaveProperty("mood");
  });

  it("keeps NaN and infinities of a series as values", () => {
    const { series: entries, buffers } = series({
      buckets: [bucket(1, Number.NaN), bucket(2, Number.POSITIVE_INFINITY)],
    });
    const values = update(delta(1, { series: entries }), buffers).series[0]?.values;
    expect(values?.[6]).toBeNaN();
    expect(values?.[7]).toBe(Number.POSITIVE_INFINITY);
  });

  const forms: [string, (view: DataView) => unknown][] = [
    ["a DataView at an odd offset", (view) => view],
    ["an ArrayBuffer", (view) => view.buffer.slice(view.byteOffset)],
    ["a Uint8Array", (view) => new Uint8Array(view.buffer, view.byteOffset)],
  ];
  it.each(forms)("reads %s", (_, as) => {
    const { series: entries, buffers } = series({ buckets: [bucket(3, 7)] });
    const message = update(delta(1, { series: entries }), buffers.map((view) => as(view)));
    expect([...(message.series[0]?.values ?? [])]).toEqual([3, 0.3, 0.03, 7, 7, 7]);
  });

  it.each([
    ["no buffer", []],
    ["a buffer too short", [new ArrayBuffer(47)]],
    ["no buffer at all but text", ["AAAA"]],
  ])("reports a series with %s and goes on", (_, buffers) => {
    const content = delta(1, {
      series: [{ metric: "loss", rank: 0, attempt: 0, start: 0, n: 1, buf: 0 }],
      logs: [log(0, 1, "still here")],
    });
    const { problems } = decode(content, buffers);
    expect(problems.join()).toContain("buffer 0");
    expect(update(content, buffers).series).toEqual([]);
    expect(update(content, buffers).logs).toHaveLength(1);
  });

  it.each([null, undefined, 3, "text", [], {}, { kind: "party" }])("refuses %j and says so", (content) => {
    const { message, problems } = decode(content);
    expect(message).toBeNull();
    expect(problems).toHaveLength(1);
  });

  it("names both versions when they differ", () => {
    const { message, problems } = decode({ ...snapshot(), v: 3 });
    expect(message).toBeNull();
    expect(problems[0]).toMatch(/version 3.*version 2.*restart the kernel/);
  });

  it.each([
    ["run", { run: 5 }, /"run" should be an object/],
    ["a run's state", { run: { ...run(), state: "dancing" } }, /unknown run state: "dancing"/],
    ["workers", { workers: { 0: worker(0) } }, /"workers" should be a list/],
    ["a worker", { workers: [{ rank: "zero" }] }, /entry of "workers"/],
    ["a worker's status", { workers: [{ ...worker(0), status: "odd" }] }, /unknown status of rank 0/],
    ["series", { series: [{ metric: 1 }] }, /entry of "series"/],
    ["a huge series", { series: [{ metric: "a", rank: 0, start: 0, n: 1e9, buf: 0 }] }, /too long/],
    ["logs", { logs: [{ rank: 0 }] }, /entry of "logs"/],
    ["bands", { bands: [{ metric: "a", start: 0, n: 1, buf: 5 }] }, /buffer 5, for "a"/],
    ["focus", { focus: [1] }, /"focus" should be an object/],
    ["hints", { hints: "none" }, /"hints" should be a list/],
    ["events", { events: [null] }, /entry of "events"/],
    ["seq", { seq: "one" }, /no valid "seq"/],
  ])("reports a bad %s", (_, over, problem) => {
    const { message, problems } = decode(delta(1, over));
    expect(message).not.toBeNull();
    expect(problems.join("\n")).toMatch(problem);
  });

  it("turns unknown numbers into null, never 0", () => {
    const content = delta(1, { workers: [{ rank: 0, status: "running", util: "87", step: Number.NaN, where: 5 }] });
    expect(update(content).workers[0]).toEqual({ rank: 0, status: "running", util: null, step: null, where: null });
  });

  it("leaves fields of a partial row that are not there as they are", () => {
    const content = delta(1, { workers: [{ rank: 4, rows_rate: 12.5, still_since: null }] });
    expect(update(content).workers).toEqual([{ rank: 4, rows_rate: 12.5, still_since: null }]);
    expect(decode(content).problems).toEqual([]);
  });

  it("reads the shards of a row, at most eight, and skips what is none", () => {
    const shards = [shard(), "bad", { name: "b", kind: "odd", shuffle: "yes", set_epoch: "maybe" }, ...Array.from({ length: 20 }, () => shard())];
    const [first, second, ...more] = update(delta(1, { workers: [{ rank: 0, shards }] })).workers[0]?.shards ?? [];
    expect(first).toEqual(shard());
    expect(second).toMatchObject({ name: "b", kind: null, shuffle: null, set_epoch: null, rows_seen: null });
    expect(more.length).toBeLessThan(LIMITS.shards);
  });

  it("reads bands and what is in focus", () => {
    const buffers: DataView[] = [];
    const entries = bands(buffers, { metric: "loss", attempt: 1, start: 2, buckets: [[5, 0.5, 0.1, 3, 1, 9, 1_000]] });
    const content = delta(1, { bands: entries, focus: { pinned: [3, -1, "x", 7], worst: { loss: 11, acc: "no" } } });
    const message = update(content, buffers);
    expect(decode(content, buffers).problems).toEqual([]);
    expect(message.bands[0]).toMatchObject({ metric: "loss", attempt: 1, start: 2, n: 1 });
    expect([...(message.bands[0]?.values ?? [])]).toEqual([5, 0.5, 0.1, 3, 1, 9, 1_000]);
    expect(message.focus).toEqual({ pinned: [3, 7], worst: new Map([["loss", 11]]) });
    expect(update(delta(2)).focus).toBeNull();
    const many = Array.from({ length: 90 }, (_, rank) => rank);
    expect(update(delta(1, { focus: { pinned: many } })).focus?.pinned).toHaveLength(MAX_PINNED);
  });

  it("reads hints, and keeps one of a kind it does not know", () => {
    const content = delta(1, { hints: [hint(), { title: "new", kind: "brand_new", level: "odd", ranks: "all" }, { kind: "leak" }] });
    const { problems } = decode(content);
    expect(update(content).hints).toEqual([
      hint(),
      { id: "other: new", kind: "other", level: "info", title: "new", ranks: [], evidence: "", threshold: "", fix: "", since: null, until: null },
    ]);
    expect(problems).toEqual(['an entry of "hints" is not understood']);
    expect(update(delta(1)).hints).toBeNull();
  });

  it.each([
    ["rank-00003.log", "rank-00003.log"],
    ["../../etc/passwd", "-..-etc-passwd"],
    ["C:\\boot.ini", "C--boot.ini"],
    ["\u202egol.exe\n", "-gol.exe-"],
    ["...", "rank-3.log"],
    [undefined, "rank-3.log"],
  ])("saves a file named %j as %j", (name, safe) => {
    const bytes = new DataView(new Uint8Array([9, 104, 105]).buffer, 1);
    const file = decode({ v: 2, kind: "file", rank: 3, name, whole: true, note: null }, [bytes]).message as LogFile;
    expect(file).toMatchObject({ kind: "file", rank: 3, name: safe, whole: true, note: null });
    expect([...file.data]).toEqual([104, 105]);
  });

  it("says of a file without bytes that there is none", () => {
    const { message, problems } = decode({ v: 2, kind: "file", rank: 3 });
    expect(message).toBeNull();
    expect(problems.join()).toContain("without its bytes");
  });

  it("bounds texts, lists and its own complaints", () => {
    const content = delta(1, {
      logs: Array.from({ length: LIMITS.logs + 5 }, (_, i) => log(0, i, "x".repeat(10_000))),
      events: Array.from({ length: 100 }, () => "bad"),
    });
    const { problems } = decode(content);
    const message = update(content);
    expect(message.logs).toHaveLength(LIMITS.logs);
    expect(message.logs[0]?.seq).toBe(5);
    expect(message.logs[0]?.text.length).toBe(LIMITS.text + 1);
    expect(problems.length).toBeLessThanOrEqual(LIMITS.problems);
  });

  it("is not fooled by names of Object's own members", () => {
    const content = snapshot({ run: { ...run(), shard_totals: JSON.parse('{"__proto__": 7, "constructor": 1}') as object } });
    const totals = update(content).run?.shard_totals ?? {};
    expect(Object.getPrototypeOf(totals)).toBeNull();
    expect(totals["constructor"]).toBe(1);
    expect(({} as Record<string, unknown>)["7"]).toBeUndefined();
  });

  it("reads an acknowledgement", () => {
    expect(decode({ kind: "ack", of: "stop" }).message).toEqual({ kind: "ack", of: "stop", trial: null });
    const trial = { kind: "ack", of: "stop_trial", trial: 3 };
    expect(decode(trial).message).toEqual(trial);
  });
});
