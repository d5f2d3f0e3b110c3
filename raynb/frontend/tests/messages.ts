/** Messages to test with: whole and valid unless a test bends them. */
import type { Hint, LogLine, Run, Shard, TimelineEvent, Worker } from "../src/wire";

export function run(over: Partial<Run> = {}): Run {
  return {
    name: "mnist",
    state: "training",
    message: "epoch 1 of 3",
    started: 1_000,
    ended: null,
    now: 1_065,
    world_size: 2,
    storage: "/shared/runs/mnist",
    attempt: 0,
    blocking: true,
    stoppable: true,
    shard_totals: { train: 60_000 },
    error: null,
    dropped: { metrics: 0, samples: 0, logs: 0, series: 0, refused: 0 },
    best: null,
    detail: "ranks",
    search: null,
    ...over,
  };
}

export function shard(over: Partial<Shard> = {}): Shard {
  return {
    name: "train",
    kind: "map",
    rows_seen: 12_800,
    rows_total: 30_000,
    batches_seen: 100,
    batches_total: 235,
    batch_size: 128,
    rows_dropped: 0,
    rows_repeated: 0,
    epoch: 1,
    shuffle: true,
    set_epoch: "ok",
    eta_s: 42,
    ...over,
  };
}

export function worker(rank: number, over: Partial<Worker> = {}): Worker {
  return {
    rank,
    attempt: 0,
    node: "node-a",
    ip: "10.0.0.1",
    pid: 4_000 + rank,
    status: "running",
    waiting_since: null,
    device: `GPU ${rank} · NVIDIA H200`,
    device_kind: "GPU",
    util: 87.4,
    mem_used: 12.1 * 1024 ** 3,
    mem_total: 139 * 1024 ** 3,
    mem_process: 11.2 * 1024 ** 3,
    temperature: 61,
    power: 512,
    device_wide: false,
    note: null,
    cpu: 104,
    rss: 3.5 * 1024 ** 3,
    threads: 4,
    cores: 8,
    net_in: 125e6,
    net_out: 118e6,
    disk_read: 2e6,
    disk_write: 0,
    net_speed: 1.25e9,
    step: 1_240,
    rate: 8.25,
    last_report: 1_064,
    records: 1_240,
    reports: 3,
    step_s: 0.121,
    wait_s: 0.012,
    report_s: 0.001,
    sync_s: 0.03,
    rows_rate: 1_056,
    still_since: null,
    where: null,
    lr: 0.001,
    shards: [shard()],
    ...over,
  };
}

export function hint(over: Partial<Hint> = {}): Hint {
  return {
    id: "data_bound",
    kind: "data_bound",
    level: "warn",
    title: "Rank 1 waits 71 % of its step for data",
    ranks: [1],
    evidence: "0.086 of 0.121 s a step over the last 10 s",
    threshold: "40 % of a step",
    fix: "Load ahead in more processes:\n    DataLoader(..., num_workers=4)",
    since: 1_040,
    until: null,
    ...over,
  };
}

/** A bucket: step, time, epoch, last, min, max. */
export type Bucket = readonly [number, number, number, number, number, number];

export function bucket(step: number, value: number): Bucket {
  return [step, step / 10, step / 100, value, value, value];
}

/** A bucket of bands: step, time, epoch, median, min, max, count. */
export type BandBucket = readonly [number, number, number, number, number, number, number];

export interface Part {
  metric?: string;
  rank?: number;
  attempt?: number;
  start?: number;
  buckets: readonly Bucket[];
}

/** The series entries of a message and their buffers, as the kernel packs them. */
export function series(...parts: Part[]): { series: object[]; buffers: DataView[] } {
  const buffers: DataView[] = [];
  const entries = parts.map(({ metric = "loss", rank = 0, attempt = 0, start = 0, buckets }) => ({
    metric, rank, attempt, start, n: buckets.length, buf: buffers.push(pack(buckets, 6)) - 1,
  }));
  return { series: entries, buffers };
}

export interface BandsPart {
  metric?: string;
  attempt?: number;
  start?: number;
  buckets: readonly BandBucket[];
}

/** The same of bands; their buffers follow those of the message's series. */
export function bands(buffers: DataView[], ...parts: BandsPart[]): object[] {
  return parts.map(({ metric = "loss", attempt = 0, start = 0, buckets }) => ({
    metric, attempt, start, n: buckets.length, buf: buffers.push(pack(buckets, 7)) - 1,
  }));
}

function pack(buckets: readonly (readonly number[])[], rows: number): DataView {
  const n = buckets.length;
  // At an odd offset, as front ends may hand them over.
  const view = new DataView(new ArrayBuffer(rows * 8 * n + 3), 3);
  for (let row = 0; row < rows; row++) {
    buckets.forEach((one, i) => view.setFloat64((row * n + i) * 8, one[row] ?? 0, true));
  }
  return view;
}

export function log(rank: number, seq: number, text: string, stream: "out" | "err" = "out"): LogLine {
  return { rank, seq, stream, text };
}

export function event(text: string, over: Partial<TimelineEvent> = {}): TimelineEvent {
  return { t: 1_010, level: "info", text, ...over };
}

export function snapshot(over: object = {}): object {
  return { v: 2, kind: "snapshot", seq: 1, run: run(), ...over };
}

export function delta(seq: number, over: object = {}): object {
  return { v: 2, kind: "delta", seq, ...over };
}
