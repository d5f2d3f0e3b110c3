/** Messages to test with: whole and valid unless a test bends them. */
import type { LogLine, Run, TimelineEvent, Worker } from "../src/wire";

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
    dropped: { metrics: 0, samples: 0, logs: 0 },
    best: null,
    ...over,
  };
}

export function worker(rank: number, over: Partial<Worker> = {}): Worker {
  return {
    rank,
    node: "node-a",
    ip: "10.0.0.1",
    pid: 4_000 + rank,
    device: `GPU ${rank} · NVIDIA H200`,
    device_kind: "GPU",
    util: 87.4,
    mem_used: 12.1 * 1024 ** 3,
    mem_total: 139 * 1024 ** 3,
    note: null,
    step: 1_240,
    rate: 8.25,
    last_report: 1_064,
    status: "running",
    shard: {
      name: "train",
      rows_seen: 12_800,
      rows_total: 30_000,
      batches_seen: 100,
      batches_total: 235,
      batch_size: 128,
      epoch: 1,
    },
    ...over,
  };
}

/** A bucket: step, time, last, min, max. */
export type Bucket = readonly [number, number, number, number, number];

export function bucket(step: number, value: number): Bucket {
  return [step, step / 10, value, value, value];
}

export interface Part {
  metric?: string;
  rank?: number;
  attempt?: number;
  start?: number;
  buckets: readonly Bucket[];
}

/** The series entries of a message and their buffers, as the kernel packs them. */
export function series(...parts: Part[]): { series: object[]; buffers: DataView[] } {
  const entries: object[] = [];
  const buffers: DataView[] = [];
  parts.forEach(({ metric = "loss", rank = 0, attempt = 0, start = 0, buckets }, buf) => {
    const n = buckets.length;
    entries.push({ metric, rank, attempt, start, n, buf });
    // At an odd offset, as front ends may hand them over.
    const view = new DataView(new ArrayBuffer(40 * n + 3), 3);
    for (let row = 0; row < 5; row++) {
      buckets.forEach((one, i) => view.setFloat64((row * n + i) * 8, one[row] ?? 0, true));
    }
    buffers.push(view);
  });
  return { series: entries, buffers };
}

export function log(rank: number, seq: number, text: string, stream: "out" | "err" = "out"): LogLine {
  return { rank, seq, stream, text };
}

export function event(text: string, over: Partial<TimelineEvent> = {}): TimelineEvent {
  return { t: 1_010, level: "info", text, ...over };
}

export function snapshot(over: object = {}): object {
  return { v: 1, kind: "snapshot", seq: 1, run: run(), ...over };
}

export function delta(seq: number, over: object = {}): object {
  return { v: 1, kind: "delta", seq, ...over };
}
