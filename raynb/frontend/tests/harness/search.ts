/**
 * A search on a page of its own: trials under ASHA, played by a fake kernel.
 *
 * Query: trials=N, iterations=N (of a trial that is not pruned), concurrent=N,
 * done=SHARE (of the trials, before the page opens), hz=N (messages a second; 0
 * stands still), grow=N (iterations of all running trials a message),
 * scene=running|finished, theme, width, tab, select=N, measure=SECONDS.
 */
import { FakeModel } from "../fake_model";
import { log, series, type Bucket } from "../messages";
import { trial as trialRow, search, searchRun } from "../search_messages";
import { noise } from "./fleet";
import { measureIfAsked, openPage, query } from "./page";
import type { TrialState } from "../../src/search_wire";
import panel from "../../../static/panel.js";

const total = Number(query.get("trials") ?? 50);
const iterations = Number(query.get("iterations") ?? 100);
const concurrent = Number(query.get("concurrent") ?? 8);
const share = Number(query.get("done") ?? 0.6);
const hz = Number(query.get("hz") ?? 4);
const grow = Number(query.get("grow") ?? 1);
const over = query.get("scene") === "finished";
const RUNGS = [4, 16, 64];

const begun = Date.now() / 1000 - 900;
const model = new FakeModel("tune");
const el = openPage();

interface Simulated {
  config: Record<string, number | string>;
  state: TrialState;
  reason: string | null;
  /** Where its accuracy goes, and how fast. */
  ceiling: number;
  pace: number;
  curve: number[];
  started: number | null;
  ended: number | null;
  told: number;
}

const OPTIMIZERS = ["adam", "adamw", "sgd"];
const BATCHES = [16, 32, 64];
const unit = (): number => noise() + 0.5;

const trials: Simulated[] = Array.from({ length: total }, () => {
  const lr = 10 ** (-6 + 4 * unit());
  const optimizer = OPTIMIZERS[Math.floor(unit() * 3)] ?? "adam";
  const batch = BATCHES[Math.floor(unit() * 3)] ?? 32;
  const dropout = 0.5 * unit();
  const off = Math.abs(Math.log10(lr) + 3.6) / 2.4;
  const ceiling = 0.965 - 0.5 * off ** 2 - (optimizer === "sgd" ? 0.09 : 0) - 0.12 * (dropout - 0.15) ** 2 - 0.02 * unit();
  return {
    config: { lr, batch_size: batch, "model/dropout": dropout, warmup_steps: 500 + Math.floor(1500 * unit()), optimizer },
    state: "pending",
    reason: null,
    ceiling: Math.max(0.1, ceiling),
    pace: 4 + 14 * unit() + 10 * off,
    curve: [],
    started: null,
    ended: null,
    told: 0,
  };
});

let clock = begun;

function end(one: Simulated, state: TrialState, reason: string): void {
  one.state = state;
  one.reason = reason;
  one.ended = clock;
}

/** One iteration of every running trial; new ones take free places. */
function advance(): void {
  clock += 1.4;
  for (const [i, one] of trials.entries()) {
    if (one.state !== "running") continue;
    const at = one.curve.length + 1;
    one.curve.push(one.ceiling * (1 - Math.exp(-at / one.pace)) + 0.012 * noise());
    if (at >= iterations) end(one, "finished", "ended by itself");
    else if (at === 11 && i % 23 === 7) end(one, "failed", "ValueError: loss became NaN in step 352");
    else if (concurrent < total && RUNGS.includes(at)) {
      const here = trials.flatMap(({ curve }) => curve[at - 1] ?? []).sort((a, b) => b - a);
      const place = here.indexOf(one.curve[at - 1] ?? 0);
      if (here.length >= 3 && place >= here.length / 2) end(one, "pruned", `pruned by ASHA at iteration ${at}`);
    }
  }
  const free = concurrent - trials.filter(({ state }) => state === "running").length;
  for (const one of trials.filter(({ state }) => state === "pending").slice(0, free)) {
    one.state = "running";
    one.started = clock;
  }
}

const ended = (): number => trials.filter((one) => one.ended !== null).length;
const wanted = over ? total : share * total;
// All at a time end together: then the share is of their iterations.
while (ended() < wanted && (over || concurrent < total || (trials[0]?.curve.length ?? 0) < share * iterations)) advance();

function row(one: Simulated, index: number): object {
  const best = one.curve.length === 0 ? null : Math.max(...one.curve);
  const latest = one.curve.at(-1) ?? null;
  return trialRow(index, {
    id: `a3f${String(index).padStart(5, "0")}`,
    state: one.state,
    reason: one.reason,
    reason_kind: one.state === "failed" ? "error" : null,
    error:
      one.state === "failed"
        ? { title: one.reason ?? "", rank: 0, line: "Cell In[4], line 21: loss.backward()", text: "Traceback (most recent call last):\n  Cell In[4], line 21\n    loss.backward()\nValueError: loss became NaN in step 352\n" }
        : null,
    config: one.config as never,
    iterations: one.curve.length || null,
    latest,
    best,
    best_step: best === null ? null : one.curve.indexOf(best) + 1,
    last: (latest === null ? {} : { val_accuracy: latest, train_loss: 2.4 * (1 - latest) }) as never,
    time_s: one.curve.length === 0 ? null : one.curve.length * 1.4,
    started: one.started,
    ended: one.ended,
    checkpoint: one.curve.length,
    restarts: 0,
    node: `node-0${index % 4}`,
  });
}

function runNow(state = over ? "finished" : "searching"): object {
  const counts: Record<string, number> = {};
  for (const { state: one } of trials) counts[one] = (counts[one] ?? 0) + 1;
  let best = -1;
  let value = Number.NEGATIVE_INFINITY;
  trials.forEach(({ curve }, i) => {
    const own = Math.max(...curve);
    if (curve.length > 0 && own > value) [best, value] = [i, own];
  });
  const one = trials[best];
  const running = counts["running"] ?? 0;
  return searchRun(
    {
      name: "bert-tuning",
      state: state as never,
      message: "",
      started: begun,
      ended: over ? clock : null,
      now: over ? clock : Date.now() / 1000,
      stoppable: !over && state === "searching",
      storage: "/mnt/cluster_storage/teams/nlp/experiments/raynb/bert-tuning-2026-05-01",
    },
    search({
      planned: total,
      scheduler: "ASHA",
      search: "random",
      max_concurrent: String(concurrent),
      time_budget_s: 3_600,
      stop: "val_accuracy >= 0.99",
      counts: counts as never,
      best_trial: one === undefined ? null : { trial: best, value, step: one.curve.indexOf(value) + 1, config: one.config },
      cluster: { CPU: { used: running, total: Math.max(16, concurrent) }, GPU: { used: Math.min(4, running / 2), total: 4 } },
    }),
  );
}

/** The curves from what was told before, or all. */
function curves(whole: boolean): { series: object[]; buffers: DataView[] } {
  const parts = trials.flatMap((one, rank) => {
    const start = whole ? 0 : one.told;
    one.told = one.curve.length;
    if (start >= one.curve.length) return [];
    const from = (one.started ?? begun) - begun;
    const bucketsOf = (valueOf: (accuracy: number) => number): Bucket[] =>
      one.curve.slice(start).map((value, i) => {
        const at = start + i + 1;
        const own = valueOf(value);
        return [at, from + at * 1.4, Number.NaN, own, own, own];
      });
    return [
      { metric: "val_accuracy", rank, start, buckets: bucketsOf((value) => value) },
      { metric: "train_loss", rank, start, buckets: bucketsOf((value) => 2.4 * (1 - value)) },
    ];
  });
  return series(...parts);
}

let seq = 1;

function snapshot(): void {
  const { buffers, ...metrics } = curves(true);
  const logs = trials.slice(0, 40).flatMap(({ curve }, lane) =>
    curve.slice(-5).map((value, i) => log(lane, i + 1, `iteration ${curve.length - 4 + i}  \x1b[1mval_accuracy\x1b[0m \x1b[36m${value.toFixed(4)}\x1b[0m`)),
  );
  model.emit(
    { v: 2, kind: "snapshot", seq, run: runNow(), trials: trials.map(row), workers: [], ...metrics, logs, logs_dropped: {}, events: [], hints: [] },
    buffers,
  );
}

model.send = (message) => {
  model.sent.push(message);
  if (message.kind === "hello") setTimeout(snapshot, 5);
  if (message.kind === "stop_trial") {
    const one = trials[message.trial];
    setTimeout(() => model.emit({ kind: "ack", of: "stop_trial", trial: message.trial }), 200);
    setTimeout(() => {
      if (one !== undefined) end(one, "stopped", "stopped on request");
      model.emit({ v: 2, kind: "delta", seq: ++seq, run: runNow(), trials: one === undefined ? [] : [row(one, message.trial)] });
    }, 1_500);
  }
  if (message.kind === "stop") setTimeout(() => model.emit({ kind: "ack", of: "stop" }), 200);
};

void panel.render({ model, el });
const tab = query.get("tab");
if (tab !== null) el.querySelector<HTMLElement>(`.rn-tab[data-tab="${tab}"]`)?.click();

if (hz > 0 && !over) {
  setInterval(() => {
    const before = trials.map(({ state, curve }) => `${state}${curve.length}`);
    for (let i = 0; i < grow; i++) advance();
    // So that there is something to measure for as long as it takes.
    if (trials.every(({ ended: at }) => at !== null)) return;
    const changed = trials.flatMap((one, i) => (before[i] === `${one.state}${one.curve.length}` ? [] : [row(one, i)]));
    const { buffers, ...metrics } = curves(false);
    model.emit({ v: 2, kind: "delta", seq: ++seq, run: runNow(), trials: changed, ...metrics }, buffers);
  }, 1000 / hz);
}
measureIfAsked();
