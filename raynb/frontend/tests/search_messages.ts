/** Messages of a search to test with: whole and valid unless a test bends them. */
import { run } from "./messages";
import type { Run } from "../src/wire";

/** What `run` says of a search, as it is on the wire. */
export function search(over: object = {}): object {
  return {
    kind: "tune",
    metric: "val_accuracy",
    mode: "max",
    planned: 8,
    num_samples: 8,
    scheduler: "ASHA",
    search: "random",
    max_concurrent: null,
    time_budget_s: null,
    stop: null,
    workers: 1,
    params: [
      { name: "lr", kind: "float", log: true, low: 1e-6, high: 1e-2, choices: null, text: "loguniform(1e-06, 0.01)" },
      { name: "batch_size", kind: "choice", log: false, low: null, high: null, choices: [16, 32, 64], text: "choice([16, 32, 64])" },
      { name: "model/dropout", kind: "float", log: false, low: 0, high: 0.5, choices: null, text: "uniform(0, 0.5)" },
      { name: "warmup_steps", kind: "int", log: false, low: 500, high: 2000, choices: null, text: "randint(500, 2000)" },
      { name: "optimizer", kind: "choice", log: false, low: null, high: null, choices: ["adam", "adamw", "sgd"], text: "choice(['adam', 'adamw', 'sgd'])" },
      { name: "epochs", kind: "fixed", log: false, low: null, high: null, choices: null, text: "3" },
    ],
    metrics: ["val_accuracy", "train_loss"],
    counts: { pending: 5, running: 1, paused: 0, finished: 1, pruned: 1, stopped: 0, failed: 0 },
    best_trial: null,
    cluster: { CPU: { used: 2, total: 4 } },
    ...over,
  };
}

/** A run that is a search. */
export function searchRun(over: Partial<Run> = {}, of: object = search()): object {
  return { ...run({ world_size: null, state: "searching", shard_totals: {}, ...over }), ...of };
}

/** A trial's row. */
export function trial(index: number, over: object = {}): object {
  return {
    trial: index,
    id: `t${index}`,
    name: `train_t${index}`,
    state: "running",
    reason: null,
    reason_kind: null,
    error: null,
    config: { lr: 1e-4 * (index + 1), batch_size: 32, "model/dropout": 0.1, warmup_steps: 800, optimizer: "adam", epochs: 3 },
    iterations: 2,
    latest: 0.5,
    best: 0.5 + index / 100,
    best_step: 1,
    last: { val_accuracy: 0.5, train_loss: 1.25 },
    time_s: 12,
    started: 1_000,
    ended: null,
    last_report: 1_060,
    checkpoint: 1,
    restarts: 0,
    node: "node-a",
    pid: 4_000 + index,
    ...over,
  };
}
