/** A made-up fleet: workers, loaders, hints and lines as a lively run would send them. */
import { hint, log, shard, worker } from "../messages";
import type { Hint, LogLine, Shard, Worker } from "../../src/wire";

let seed = 7;
export function noise(): number {
  seed = (seed * 16_807) % 2_147_483_647;
  return seed / 2_147_483_647 - 0.5;
}

const STATUS: Record<string, Worker["status"]> = {
  finished: "finished",
  failed: "stopped",
  waiting: "starting",
};

/** How slow a rank is: a few stand out. */
function drag(rank: number): number {
  return rank % 97 === 5 ? 1.9 : rank % 53 === 3 ? 1.45 : 1;
}

export function fleet(ranks: number, step: number, scene: string, gpu: boolean): Worker[] {
  const now = Date.now() / 1000;
  const perNode = ranks <= 8 ? 4 : 8;
  return Array.from({ length: ranks }, (_, rank) => {
    const running = scene === "running";
    const reporting = running && rank % 41 === 2;
    const still = running && rank % 211 === 7;
    const blind = rank % 89 === 6;
    const own = (0.085 + 0.004 * noise()) * drag(rank);
    const wait = rank % 31 === 4 ? 0.05 : 0.008 + 0.003 * noise();
    const longest = 0.085 * (ranks > 5 ? 1.9 : ranks > 3 ? 1.45 : 1) + 0.02;
    const sync = Math.max(0.002, longest - own - wait);
    const step_s = own + wait + sync + 0.002;
    return worker(rank, {
      node: `node-${String(Math.floor(rank / perNode)).padStart(2, "0")}`,
      ip: `10.0.${Math.floor(rank / perNode)}.1`,
      pid: 41_000 + rank,
      status:
        scene === "failed" && rank === 1 ? "failed" : reporting ? "waiting" : (STATUS[scene] ?? "running"),
      waiting_since: reporting ? now - 3 : null,
      reports: Math.floor(step / 40),
      device: gpu ? `GPU ${rank % perNode} · NVIDIA H200` : "CPU",
      device_kind: gpu ? "GPU" : "CPU",
      util: blind ? null : Math.min(100, 100 * (own / step_s) + 4 * noise()),
      mem_used: blind ? null : (gpu ? 96e9 : 6e9) + 4e9 * noise(),
      mem_total: blind ? null : gpu ? 141e9 : 128 * 1024 ** 3,
      mem_process: gpu && !blind ? (rank % 20 === 1 ? 48e9 : 94e9) : null,
      device_wide: gpu && rank % 20 === 1,
      temperature: gpu && !blind ? 62 + 8 * noise() : null,
      power: gpu && !blind ? 560 + 90 * noise() : null,
      note: blind ? "no NVML on this node" : null,
      cpu: 104 + 20 * noise(),
      rss: 3.4e9 + 2e8 * noise(),
      step: still ? step * 5 - 60 : step * 5,
      rate: 1 / step_s,
      rows_rate: 128 / step_s,
      step_s,
      wait_s: wait,
      sync_s: ranks > 1 ? sync : null,
      report_s: 0.002,
      last_report: still ? now - 14 : now - 0.3,
      still_since: still ? now - 14 : null,
      where: still ? "Cell In[3], line 12: loss.backward() (in torch/autograd/graph.py:581 _engine_run_backward)" : null,
      net_in: 180e6 + 4e7 * noise(),
      net_out: 175e6 + 4e7 * noise(),
      net_speed: 1.25e9,
      disk_read: 22e6 + 5e6 * noise(),
      disk_write: 1e6,
      shards: [train(rank, step), validation(rank, step)],
    });
  });
}

function train(rank: number, step: number): Shard {
  const whole = rank % 37 === 5 ? 24_000 : 30_000;
  const seen = Math.min(whole, Math.round((((step * 128) % 30_000) * (1 + 0.02 * noise())) / drag(rank)));
  return shard({
    name: "train",
    rows_seen: seen,
    rows_total: whole,
    batches_seen: Math.ceil(seen / 128),
    batches_total: Math.ceil(whole / 128),
    rows_repeated: rank % 37 === 5 ? 0 : 48,
    epoch: Math.floor((step * 128) / 30_000),
    set_epoch: "missing",
    eta_s: ((whole - seen) / 1_056) * drag(rank),
  });
}

function validation(rank: number, step: number): Shard {
  return shard({
    name: "validation",
    kind: "iterable",
    rows_seen: Math.floor(step / 4) * 64,
    rows_total: null,
    batches_seen: Math.floor(step / 4),
    batches_total: null,
    batch_size: 64,
    rows_dropped: null,
    rows_repeated: null,
    epoch: null,
    shuffle: rank >= 0 ? false : null,
    set_epoch: null,
    eta_s: null,
  });
}

export function hints(ranks: number, begun: number): Hint[] {
  return [
    hint({
      id: "straggler",
      kind: "straggler",
      level: "warn",
      title: `Rank ${Math.min(5, ranks - 1)} is slower than the others, which wait for it`,
      ranks: Array.from({ length: ranks }, (_, rank) => rank).filter((rank) => rank % 97 === Math.min(5, ranks - 1)),
      evidence: "own time 0.162 s a step against a median of 0.085 s: 1.9 times. The others wait 0.079 s a step for its gradients.",
      threshold: "1.3 times the median for 10 s",
      fix:
        "Look at what else runs on its node, and at how its shard differs.\n" +
        "To see where the time goes on that rank:\n" +
        "    with torch.profiler.profile() as prof:\n" +
        "        train_step(batch)\n" +
        "    print(prof.key_averages().table(sort_by=\"cpu_time_total\"))",
      since: begun + 12,
    }),
    hint({
      id: "set_epoch",
      kind: "set_epoch",
      level: "warn",
      title: "Every epoch has the same order: set_epoch() is not called",
      ranks: Array.from({ length: ranks }, (_, rank) => rank),
      evidence: "2 epochs of the loader train began with the sampler at epoch 0",
      threshold: "the second epoch begins without a call",
      fix: "Call it at the start of each epoch:\n    for epoch in range(epochs):\n        loader.sampler.set_epoch(epoch)\n\n        for x, y in loader:\n            ...",
      since: begun + 20,
    }),
    hint({
      id: "non_finite",
      kind: "non_finite",
      level: "error",
      title: "grad_norm became NaN at step 815 on rank 1",
      ranks: [1],
      evidence: "last finite value 412.7 at step 810",
      threshold: "any NaN or infinity",
      fix: "Clip the gradients, or lower the learning rate:\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
      since: begun + 21,
    }),
    hint({
      id: "threads",
      kind: "threads",
      level: "info",
      title: "More torch threads than cores on node-00",
      ranks: [0],
      evidence: "4 workers with 8 threads each on 16 cores",
      threshold: "more than 1.5 threads a core",
      fix: "    torch.set_num_threads(4)",
      since: begun + 2,
      until: begun + 18,
    }),
  ];
}

const LINES = [
  "epoch 1  \x1b[1mloss\x1b[0m \x1b[36m0.4127\x1b[0m  ████████░░░░ 64 %",
  "saved checkpoint to /mnt/cluster_storage/teams/vision/experiments/raynb/mnist-cnn-2024-05-01-final/checkpoint_000012/rank.pt",
  "\x1b[33mUserWarning\x1b[0m: Detected call of lr_scheduler.step() before optimizer.step(). In PyTorch 1.1.0 and later, you should call them in the opposite order: optimizer.step() before lr_scheduler.step(). Failure to do this will result in PyTorch skipping the first value of the learning rate schedule.",
  "validation accuracy 0.9712",
  "grad norm \x1b[32m1.284\x1b[0m",
];

/** `count` lines of up to `ranks` ranks; a warning now and then on stderr. */
export function lines(ranks: number, count: number, from: number): LogLine[] {
  return Array.from({ length: count }, (_, i) => {
    const at = from + i;
    const kind = at % LINES.length;
    return log(at % ranks, Math.floor(at / ranks) + 1, `${LINES[kind]}  [${at}]`, kind === 2 ? "err" : "out");
  });
}
