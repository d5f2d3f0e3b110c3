/** The search at a glance: state, the best trial so far, how far it is, what of the cluster it uses, and Stop. */
import { Ask } from "../ask";
import type { Context, View } from "../context";
import { h, setAttr, setText, setTitle, show } from "../dom";
import { formatBytes, formatCount, formatDuration, formatValue, plural, UNKNOWN } from "../format";
import { icon } from "../icons";
import type { PanelState } from "../model";
import type { Resource, Search, TrialState } from "../search_wire";
import { shareOf } from "../stats";
import { valueText } from "../trial_axes";
import { TRIAL_WORDS } from "../trial_look";
import type { Run } from "../wire";
import { setWidth } from "../worker_columns";
import { droppedText, elapsedOf, field, isOver, StateBadge } from "./head_parts";

/** Resources with a bar, as people call them; others are Ray's own business. */
const RESOURCES = [
  ["CPU", "CPU"],
  ["GPU", "GPU"],
  ["memory", "memory"],
] as const;
/** Parameters of the best trial that are named; the rest is in its row. */
const MAX_NAMED = 8;

export function mount(root: HTMLElement, ctx: Context): View {
  const name = h("span", { class: "rn-name" });
  const badge = new StateBadge();
  const message = h("span", { class: "rn-message" });
  const status = h(
    "div",
    { class: "rn-status", attrs: { role: "status", "aria-live": "polite" } },
    badge.node,
    message,
  );
  const stop = new Ask(() => ctx.stop.request());
  const stopNote = h("span", { class: "rn-stop-note", attrs: { role: "status" } });
  const fields = new Fields(["elapsed", "scheduler", "search", "at a time", "budget", "stop at", "workers a trial", "storage"]);
  fields.of("storage").classList.add("rn-storage");
  const dropped = h("span", { class: "rn-dropped" });
  const best = bestCard((trial) => {
    ctx.trials.selected = trial;
    ctx.chose();
  });
  const progress = progressCard();
  const cluster = clusterCard();
  fields.node.append(dropped);
  root.append(
    h("div", { class: "rn-title" }, name, status, stopNote, stop.node),
    fields.node,
    h("div", { class: "rn-glance" }, best.node, progress.node, cluster.node),
  );

  function update(state: PanelState): void {
    const { run } = state;
    const search = run?.search ?? null;
    show(root, run !== null);
    if (run === null) return;
    setText(name, run.name);
    setTitle(name, run.name);
    badge.set(run.state);
    setText(message, run.message);
    setTitle(message, run.message);
    fields.set("elapsed", formatDuration(elapsedOf(run, state.now())));
    fields.set("storage", run.storage ?? UNKNOWN);
    const lost = droppedText(run);
    show(dropped, lost !== "");
    setText(dropped, lost);
    if (search === null) return;
    fields.set("scheduler", search.scheduler);
    fields.set("search", search.search);
    fields.set("at a time", search.max_concurrent);
    fields.set("budget", search.time_budget_s === null ? null : formatDuration(search.time_budget_s));
    fields.set("stop at", search.stop);
    fields.set("workers a trial", search.workers > 1 ? String(search.workers) : null);
    best.set(search);
    progress.set(search, state.trials.size);
    cluster.set(search, isOver(run.state));
    updateStop(run, search);
  }

  function updateStop(run: Run, { counts }: Search): void {
    const { phase, note, enabled } = ctx.stop;
    const over = isOver(run.state);
    const running = counts.get("running") ?? 0;
    show(stop.node, !over);
    stop.set({
      icon: "stop",
      words: phase === "idle" ? "Stop all" : "stopping…",
      label: phase === "idle" ? `Stop the search ${run.name}` : "stopping",
      question: running > 0 ? `Stop ${plural(running, "running trial")} and end the search?` : "End the search?",
      yes: "stop all",
      enabled,
    });
    setText(stopNote, over ? "" : note);
    show(stopNote, !over && note !== "");
  }

  return { update };
}

/** Named values in a row; null leaves one out. */
class Fields {
  readonly node = h("div", { class: "rn-meta" });
  private readonly places: Map<string, [value: HTMLElement, node: HTMLElement]>;

  constructor(names: readonly string[]) {
    this.places = new Map(names.map((name) => [name, field(name)]));
    for (const [, node] of this.places.values()) this.node.append(node);
  }

  of(name: string): HTMLElement {
    return this.places.get(name)?.[1] ?? this.node;
  }

  set(name: string, text: string | null): void {
    const [value, node] = this.places.get(name) ?? [];
    if (value === undefined || node === undefined) return;
    show(node, text !== null);
    setText(value, text ?? "");
    setTitle(value, text ?? "");
  }
}

function card(title: string, ...children: HTMLElement[]): HTMLElement {
  return h("div", { class: "rn-glance-card" }, h("div", { class: "rn-key", text: title }), ...children);
}

function bestCard(onSelect: (trial: number) => void): { node: HTMLElement; set(search: Search): void } {
  const value = h("span", { class: "rn-best-value" });
  const metric = h("span", { class: "rn-best-metric" });
  const where = h("button", {
    class: "rn-best-trial",
    title: "Show this trial",
    attrs: { type: "button" },
  });
  const params = h("div", { class: "rn-best-params" });
  const none = h("div", { class: "rn-note" });
  const some = h("div", { class: "rn-best" }, h("span", { class: "rn-best-star" }, icon("star")), value, metric, where);
  const node = card("best so far", some, params, none);
  node.classList.add("rn-best-card");
  let trial: number | null = null;
  let named = "";
  where.addEventListener("click", () => {
    if (trial !== null) onSelect(trial);
  });
  return {
    node,
    set(search) {
      const { best } = search;
      trial = best?.trial ?? null;
      for (const part of [some, params]) show(part, best !== null);
      show(none, best === null);
      if (best === null) {
        const goal = search.metric === null ? "a metric" : search.metric;
        setText(none, `none yet: it comes with the first report of ${goal}`);
        return;
      }
      setText(value, formatValue(best.value));
      setText(metric, search.metric ?? "");
      setTitle(metric, `${search.metric ?? ""}${search.mode === null ? "" : `, ${search.mode === "min" ? "lower" : "higher"} is better`}`);
      setText(where, `trial ${best.trial}${best.step === null ? "" : `, iteration ${formatCount(best.step)}`}`);
      const varied = search.params.filter(({ kind }) => kind !== "fixed").map((param) => param.name);
      const names = [...varied, ...[...best.config.keys()].filter((one) => !varied.includes(one))];
      const pairs = names.filter((one) => best.config.has(one)).map((one) => [one, valueText(best.config.get(one))] as const);
      const key = JSON.stringify(pairs);
      if (key === named) return;
      named = key;
      params.title = pairs.map(([one, text]) => `${one} = ${text}`).join("\n");
      params.replaceChildren(
        ...pairs.slice(0, MAX_NAMED).map(([one, text]) =>
          h("span", { class: "rn-pair" }, h("span", { class: "rn-key", text: one }), h("span", { class: "rn-value", text })),
        ),
      );
    },
  };
}

function progressCard(): { node: HTMLElement; set(search: Search, known: number): void } {
  const bar = h("div", { class: "rn-states", attrs: { role: "img" } });
  const legend = h("div", { class: "rn-states-legend" });
  const total = h("span", { class: "rn-glance-total" });
  const node = card("trials", bar, legend);
  node.firstElementChild?.append(total);
  const segments = new Map(
    IN_BAR.map((state) => {
      const [part, count] = [h("span", { class: `rn-state-${state}` }), h("span")];
      const { icon: name, tone } = TRIAL_WORDS[state];
      const entry = h("span", { class: `rn-badge rn-tone-${tone}` }, icon(name), count);
      bar.append(part);
      legend.append(entry);
      return [state, { part, count, entry }] as const;
    }),
  );
  return {
    node,
    set({ counts, planned }, known) {
      const whole = Math.max(planned ?? 0, known, 1);
      const done = DONE.reduce((sum, state) => sum + (counts.get(state) ?? 0), 0);
      setText(total, ` ${formatCount(done)} of ${planned === null ? `${formatCount(known)} so far` : formatCount(planned)} done`);
      const said: string[] = [];
      for (const [state, { part, count, entry }] of segments) {
        const number = counts.get(state) ?? 0;
        setWidth(part, number / whole);
        show(entry, number > 0);
        setText(count, `${formatCount(number)} ${TRIAL_WORDS[state].words}`);
        if (number > 0) said.push(`${number} ${TRIAL_WORDS[state].words}`);
      }
      setAttr(bar, "aria-label", said.length === 0 ? "no trials yet" : said.join(", "));
    },
  };
}

const DONE: readonly TrialState[] = ["finished", "pruned", "stopped", "failed"];
/** What is to come is at the end, as an empty track. */
const IN_BAR: readonly TrialState[] = ["running", "paused", ...DONE, "pending"];

function clusterCard(): { node: HTMLElement; set(search: Search, over: boolean): void } {
  const none = h("div", { class: "rn-note", text: "not known yet" });
  const waiting = h("div", { class: "rn-note" });
  const rows = RESOURCES.map(([key, label]) => {
    const fill = h("span", { class: "rn-bar-fill" });
    const text = h("span", { class: "rn-bar-label" });
    const node = h(
      "div",
      { class: "rn-bar rn-resource" },
      h("span", { class: "rn-key", text: label }),
      h("span", { class: "rn-bar-track" }, fill),
      text,
    );
    return { key, fill, text, node };
  });
  const node = card("cluster", ...rows.map((row) => row.node), none, waiting);
  node.title = "What is reserved of Ray's resources, by this search and by others";
  return {
    node,
    set({ cluster, counts }, over) {
      let known = false;
      for (const { key, fill, text, node: row } of rows) {
        const resource = cluster.get(key);
        const shown = resource !== undefined && (resource.total ?? 0) > 0 && !over;
        show(row, shown);
        if (!shown) continue;
        known = true;
        setWidth(fill, shareOf(resource.used, resource.total) ?? 0);
        setText(text, resourceText(key, resource));
      }
      show(none, !known);
      setText(none, over ? "given back" : "not known yet");
      const [running, pending] = [counts.get("running") ?? 0, counts.get("pending") ?? 0];
      setText(waiting, over ? "" : `${formatCount(running)} running, ${formatCount(pending)} pending`);
    },
  };
}

function resourceText(key: string, { used, total }: Resource): string {
  if (key === "memory") return `${formatBytes(used)} of ${formatBytes(total)}`;
  return `${used === null ? UNKNOWN : formatValue(used)} of ${formatValue(total)}`;
}
