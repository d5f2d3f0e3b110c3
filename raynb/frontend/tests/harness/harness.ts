/**
 * The built bundle on a page of its own, fed by a fake kernel.
 *
 * Query: scene=running|finished|failed|waiting|silent, ranks=N,
 * theme=light|dark|jupyter-light|jupyter-dark, steps=N (already done),
 * metrics=N, hz=N (messages a second; 0 stands still), width=PIXELS.
 */
import { FakeModel } from "../fake_model";
import { event, log, run, series, worker, type Bucket, type Part } from "../messages";
import panel from "../../../static/panel.js";

const query = new URLSearchParams(location.search);
const scene = query.get("scene") ?? "running";
const ranks = Number(query.get("ranks") ?? 2);
const steps = Number(query.get("steps") ?? 240);
const hz = Number(query.get("hz") ?? 10);
const theme = query.get("theme") ?? "light";
const names = ["train_loss", "val_accuracy", "lr", "grad_norm"].slice(0, Number(query.get("metrics") ?? 3));

const JUPYTER: Record<string, Record<string, string>> = {
  "jupyter-light": {
    "--jp-layout-color1": "#fff",
    "--jp-layout-color2": "#eee",
    "--jp-border-color2": "#e0e0e0",
    "--jp-ui-font-color1": "rgba(0, 0, 0, 0.87)",
  },
  "jupyter-dark": {
    "--jp-layout-color1": "#111",
    "--jp-layout-color2": "#424242",
    "--jp-border-color2": "#424242",
    "--jp-ui-font-color1": "rgba(255, 255, 255, 1)",
  },
};
for (const [name, value] of Object.entries(JUPYTER[theme] ?? {})) {
  document.documentElement.style.setProperty(name, value);
}
document.body.setAttribute("data-jp-theme-light", String(!theme.includes("dark")));
document.body.style.background = theme.includes("dark") ? "#111" : "#fff";
const width = query.get("width");
if (width !== null) document.body.style.width = `${width}px`;

const begun = Date.now() / 1000 - steps / 8;
const model = new FakeModel();
const el = document.querySelector<HTMLElement>("#panel");
if (el === null) throw new Error("no place for the panel");

let seed = 1;
function noise(): number {
  seed = (seed * 16_807) % 2_147_483_647;
  return seed / 2_147_483_647 - 0.5;
}

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
    buckets.push([step * 5, step / 8, value, value - spread, value + spread]);
  }
  return { metric, rank, start: from, buckets };
}

function workers(step: number): object[] {
  const status = { finished: "finished", failed: "stopped", waiting: "starting" }[scene] ?? "running";
  return Array.from({ length: ranks }, (_, rank) => {
    const gpu = query.get("device") !== "cpu";
    const rows = (step * 128) % 30_000;
    return worker(rank, {
      node: rank < 4 ? "node-a" : "node-b",
      status: scene === "failed" && rank === 1 ? "failed" : rank === 2 ? "waiting" : (status as "running"),
      device: gpu ? `GPU ${rank % 8} · NVIDIA H200` : "CPU",
      device_kind: gpu ? "GPU" : "CPU",
      util: rank === 3 ? null : 80 + 15 * noise(),
      mem_used: rank === 3 ? null : 12e9 + 1e9 * rank,
      mem_total: gpu ? 139 * 1024 ** 3 : 128 * 1024 ** 3,
      note: rank === 3 ? "no NVML on this node" : null,
      step: step * 5,
      rate: 8 + noise(),
      shard: {
        name: "train",
        rows_seen: rows,
        rows_total: rank === 5 ? null : 30_000,
        batches_seen: Math.floor(rows / 128),
        batches_total: rank === 5 ? null : 235,
        batch_size: 128,
        epoch: Math.floor((step * 128) / 30_000),
      },
    });
  });
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
    dropped: { metrics: 0, samples: 0, logs: scene === "failed" ? 214 : 0 },
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

let seq = 1;
let step = scene === "waiting" ? 0 : steps;
let logSeq = 0;

function snapshot(): void {
  const { series: entries, buffers } = series(
    ...(scene === "waiting" ? [] : names.flatMap((name) =>
      Array.from({ length: ranks }, (_, rank) => part(name, rank, 0, step)),
    )),
  );
  const logs = Array.from({ length: scene === "waiting" ? 0 : 24 }, (_, i) =>
    log(i % Math.min(ranks, 4), ++logSeq,
      i % 7 === 3
        ? "\x1b[33mUserWarning\x1b[0m: lr_scheduler.step() before optimizer.step()"
        : `epoch ${1 + Math.floor(i / 12)}  \x1b[1mloss\x1b[0m \x1b[36m${(2 / (1 + i)).toFixed(4)}\x1b[0m  ${"█".repeat(i % 12)}${"░".repeat(12 - (i % 12))} ${i * 4} %`,
      i % 7 === 3 ? "err" : "out"),
  );
  const events = [
    event("checked: 2 GPUs free, storage is writable on every node", { t: begun - 3 }),
    event("workers started on 2 nodes", { t: begun }),
    event("rank 2 waits 71 % of its step on data: raise num_workers", { t: begun + 12, level: "warn" as const }),
  ];
  if (scene === "failed") events.push(event("rank 1 failed: ValueError", { t: begun + 30, level: "error" as const }));
  model.emit(
    { v: 1, kind: "snapshot", seq, run: runNow(), workers: workers(step), series: entries, logs, events },
    buffers,
  );
}

model.send = (message) => {
  model.sent.push(message);
  if (message.kind === "hello" && scene !== "silent") setTimeout(snapshot, 5);
  if (message.kind === "stop") {
    setTimeout(() => {
      model.emit({ kind: "ack", of: "stop" });
      seq += 1;
      model.emit({ v: 1, kind: "delta", seq, run: runNow({ state: "stopping", stoppable: false }) });
    }, 200);
  }
};

void panel.render({ model, el });

if (hz > 0 && scene === "running") {
  setInterval(() => {
    const { series: entries, buffers } = series(
      ...names.flatMap((name) =>
        Array.from({ length: ranks }, (_, rank) => part(name, rank, step, step + 1)),
      ),
    );
    step += 1;
    seq += 1;
    const logs = step % 5 === 0 ? [log(step % ranks, ++logSeq, `step ${step * 5}`)] : [];
    model.emit({ v: 1, kind: "delta", seq, workers: workers(step), series: entries, logs }, buffers);
  }, 1000 / hz);
}
