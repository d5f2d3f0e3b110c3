/** Opens the panel of a search; the rest as `open_panel.ts`. */
import { openPanel, type OpenPanel } from "./open_panel";
import { series, snapshot, type Bucket } from "./messages";
import { search, searchRun, trial } from "./search_messages";

export function openSearch(): OpenPanel {
  return openPanel(undefined, "tune");
}

/** A curve of a trial: a value an iteration. */
export function curve(rank: number, values: readonly number[], metric = "val_accuracy", start = 0): {
  metric: string;
  rank: number;
  start: number;
  buckets: Bucket[];
} {
  const buckets = values.map((value, i): Bucket => [start + i + 1, start + i + 1, Number.NaN, value, value, value]);
  return { metric, rank, start, buckets };
}

/** Eight trials: 1 is the best, 3 pruned, 4 failed, 6 and 7 pending. */
export function eightTrials(): { content: object; buffers: DataView[] } {
  const rows = [
    trial(0, { state: "finished", reason: "ended by itself", reason_kind: "finished", best: 0.81, latest: 0.8 }),
    trial(1, { best: 0.93, latest: 0.92, best_step: 3, iterations: 3, config: { lr: 1e-3, batch_size: 64, "model/dropout": 0.2, warmup_steps: 900, optimizer: "adamw", epochs: 3 } }),
    trial(2, { best: 0.7 }),
    trial(3, { state: "pruned", reason: "pruned by ASHA at iteration 4", reason_kind: "pruned", best: 0.4 }),
    trial(4, {
      state: "failed",
      reason: "ValueError: bad batch",
      reason_kind: "error",
      best: 0.5,
      error: { title: "ValueError: bad batch", rank: 0, line: "Cell In[2], line 9: loss.backward()", text: "Traceback\nValueError: bad batch\n" },
    }),
    trial(5, { best: 0.6, config: { lr: 1e-5, batch_size: 16, "model/dropout": 0, warmup_steps: 500, optimizer: "sgd", epochs: 3 } }),
    trial(6, { state: "pending", reason: "waits for a free place", iterations: null, latest: null, best: null, best_step: null, last: {}, time_s: null, started: null }),
    trial(7, { state: "pending", iterations: null, latest: null, best: null, best_step: null, last: {}, time_s: null, started: null }),
  ];
  const { series: entries, buffers } = series(
    curve(0, [0.7, 0.81]),
    curve(1, [0.6, 0.8, 0.93]),
    curve(3, [0.4]),
    curve(0, [1.2, 0.9], "train_loss"),
  );
  const counts = { pending: 2, running: 3, paused: 0, finished: 1, pruned: 1, stopped: 0, failed: 1 };
  const best_trial = { trial: 1, id: "t1", value: 0.93, step: 3, config: { lr: 1e-3, batch_size: 64, optimizer: "adamw" }, state: "running" };
  const cluster = { CPU: { used: 3, total: 4 }, GPU: { used: 1.5, total: 2 } };
  return {
    content: snapshot({ run: searchRun({ name: "bert" }, search({ counts, best_trial, cluster })), trials: rows, series: entries }),
    buffers,
  };
}
