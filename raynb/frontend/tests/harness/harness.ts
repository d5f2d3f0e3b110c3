/**
 * The built bundle on a page of its own, fed by a fake kernel.
 *
 * Query: scene=running|finished|failed|waiting|silent, ranks=N,
 * theme=light|dark|jupyter-light|jupyter-dark, steps=N (already done),
 * metrics=N, hz=N (messages a second; 0 stands still), width=PIXELS, tab=NAME,
 * lines=N (of output), hints=0 (none), device=cpu, measure=SECONDS (frame times,
 * after three seconds to settle, to the console; charts=all opens every chart).
 */
import { FakeModel } from "../fake_model";
import { bands, event, run, series, type BandBucket, type Bucket, type Part } from "../messages";
import { fleet, hints, lines, noise } from "./fleet";
import { measureIfAsked, openPage, query } from "./page";
import panel from "../../../static/panel.js";

const scene = query.get("scene") ?? "running";
const ranks = Number(query.get("ranks") ?? 2);
const steps = Number(query.get("steps") ?? 240);
const hz = Number(query.get("hz") ?? 10);
const names = ["train_loss", "val_accuracy", "lr", "grad_norm"].slice(0, Number(query.get("metrics") ?? 3));

const begun = Date.now() / 1000 - steps / 8;
const model = new FakeModel();
const el = openPage();

function valueOf(metric: string, rank: number, step: number): number {
  const decay = Math.exp(-step / 90);
  if (metric === "val_accuracy") return 0.97 - 0.8 * decay + 0.01 * noise() - 0.004 * (rank % 5);
  if (metric === "lr") return 1e-3 * (0.5 + 0.5 * Math.cos(step / 200));
  if (metric === "grad_norm") return 0.5 + 8 * decay + noise();
  const odd = ranks > 16 && rank === 11 ? 0.4 : 0;
  return 0.12 + 2.2 * decay + 0.06 * noise() + 0.02 * (rank % 8) + odd;
}

function part(metric: string, rank: number, from: number, to: number): Part {
  const buckets: Bucket[] = [];
  for (let step = from; step < to; step++) {
    const value = valueOf(metric, rank, step);
    const noisy = ranks <= 4 && metric === "train_loss";
    const spread = noisy ? 0.05 + 0.1 * Math.exp(-step / 90) : 0;
    buckets.push([step * 5, step / 8, (step * 128) / 30_000, value, value - spread, value + spread]);
  }
  return { metric, rank, start: from, buckets };
}

/** Past 16 ranks: bands, and series of the ranks in focus only. */
const many = ranks > 16;
let pinned: number[] = [];

function metricsOf(from: number, to: number): { series: object[]; bands: object[]; buffers: DataView[] } {
  if (scene === "waiting") return { series: [], bands: [], buffers: [] };
  const shown = many ? [...new Set([11, ...pinned])] : Array.from({ length: ranks }, (_, rank) => rank);
  const { series: entries, buffers } = series(
    ...names.flatMap((name) => shown.map((rank) => part(name, rank, from, to))),
  );
  const across = names.map((metric) => ({
    metric,
    start: from,
    buckets: Array.from({ length: to - from }, (_, i): BandBucket => {
      const at = from + i;
      const value = valueOf(metric, 0, at);
      const spread = 0.05 + Math.abs(value) * 0.1;
      return [at * 5, at / 8, (at * 128) / 30_000, value, value - spread, value + spread, ranks];
    }),
  }));
  return { series: entries, bands: many ? bands(buffers, ...across) : [], buffers };
}

function focus(): object | undefined {
  return many ? { pinned, worst: Object.fromEntries(names.map((name) => [name, 11])) } : undefined;
}

function workers(step: number): object[] {
  return fleet(ranks, step, scene, query.get("device") !== "cpu");
}

function runNow(over: object = {}): object {
  const ended = scene === "finished" || scene === "failed";
  return run({
    name: "mnist-cnn",
    state: scene === "running" || scene === "silent" ? "training" : (scene as "failed"),
    message: {
      running: "epoch 2 of 3",
      finished: "3 epochs, 2 checkpoints kept",
      failed: "rank 1 raised an error",
      waiting: "2 GPUs asked for, 1 free: another run holds the other",
    }[scene] ?? "",
    started: scene === "waiting" ? null : begun,
    ended: ended ? Date.now() / 1000 : null,
    now: Date.now() / 1000,
    world_size: ranks,
    storage: "/mnt/cluster_storage/teams/vision/experiments/raynb/mnist-cnn-2024-05-01-final",
    attempt: scene === "failed" ? 1 : 0,
    stoppable: !ended,
    shard_totals: { train: 30_000 * ranks },
    best: scene === "waiting" ? null : { metric: "val_accuracy", value: 0.9712, step: 1_105, rank: 0 },
    dropped: { metrics: 0, samples: 0, logs: scene === "failed" ? 214 : 0, series: 0, refused: 0 },
    detail: many ? "bands" : "ranks",
    error:
      scene === "failed"
        ? {
            title: "ValueError: Expected input batch_size (128) to match target batch_size (64).",
            rank: 1,
            line: "In[7], line 14:  loss = F.cross_entropy(model(x), y)",
            text: [
              "\x1b[31mTraceback (most recent call last)\x1b[0m:",
              '  File "<ipython-input-7>", line 14, in train',
              "    loss = F.cross_entropy(model(x), y)",
              '  File "torch/nn/functional.py", line 3494, in cross_entropy',
              "    return torch._C._nn.cross_entropy_loss(",
              "\x1b[1;31mValueError\x1b[0m: Expected input batch_size (128) to match target batch_size (64).",
            ].join("\n"),
          }
        : null,
    ...over,
  });
}

const lineCount = Number(query.get("lines") ?? 40);
let seq = 1;
let step = scene === "waiting" ? 0 : steps;
let lineAt = 0;

function snapshot(): void {
  const { buffers, ...metrics } = metricsOf(0, step);
  const logs = scene === "waiting" ? [] : lines(ranks, lineCount, 0);
  lineAt = lineCount;
  const events = [
    event("checked: 2 GPUs free, storage is writable on every node", { t: begun - 3 }),
    event("workers started on 2 nodes", { t: begun }),
    event("rank 2 waits 71 % of its step on data: raise num_workers", { t: begun + 12, level: "warn" as const }),
  ];
  if (scene === "failed") events.push(event("rank 1 failed: ValueError", { t: begun + 30, level: "error" as const }));
  model.emit(
    {
      v: 2, kind: "snapshot", seq, run: runNow(), workers: workers(step), ...metrics, focus: focus(), logs, events,
      logs_dropped: { 1: 12 },
      hints: query.get("hints") === "0" || scene === "waiting" ? [] : hints(ranks, begun),
    },
    buffers,
  );
}

model.send = (message) => {
  model.sent.push(message);
  if (message.kind === "hello" && scene !== "silent") setTimeout(snapshot, 5);
  if (message.kind === "pin") {
    pinned = message.ranks;
    if (!many) return;
    const { buffers, ...metrics } = metricsOf(0, step);
    model.emit({ v: 2, kind: "delta", seq: ++seq, ...metrics, focus: focus() }, buffers);
  }
  if (message.kind === "download" && query.get("download") !== "0") {
    const bytes = new TextEncoder().encode(`the log of rank ${message.rank}\n`);
    model.emit(
      { v: 2, kind: "file", rank: message.rank, name: `rank-${message.rank}.log`, whole: true, note: null },
      [new DataView(bytes.buffer)],
    );
  }
  if (message.kind === "stop") {
    setTimeout(() => {
      model.emit({ kind: "ack", of: "stop" });
      seq += 1;
      model.emit({ v: 2, kind: "delta", seq, run: runNow({ state: "stopping", stoppable: false }) });
    }, 200);
  }
};

void panel.render({ model, el });
const tab = query.get("tab");
if (tab !== null) el.querySelector<HTMLElement>(`.rn-tab[data-tab="${tab}"]`)?.click();

if (hz > 0 && scene === "running") {
  setInterval(() => {
    const { buffers, ...metrics } = metricsOf(step, step + 1);
    step += 1;
    seq += 1;
    const fresh = Number(query.get("fresh") ?? (step % 5 === 0 ? 1 : 0));
    const logs = lines(ranks, fresh, lineAt);
    lineAt += fresh;
    model.emit({ v: 2, kind: "delta", seq, workers: workers(step), ...metrics, logs }, buffers);
  }, 1000 / hz);
}

if (query.get("charts") === "all") {
  setTimeout(() => {
    for (const button of el.querySelectorAll<HTMLElement>('.rn-metric[aria-pressed="false"]')) button.click();
  }, 1_500);
}
measureIfAsked();
