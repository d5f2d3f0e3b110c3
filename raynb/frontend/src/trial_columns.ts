/** The columns of the trials' table: who, how it stands, its parameters, how good, and what to do. */
import { Ask } from "./ask";
import type { Context } from "./context";
import { h, setAttr, setText, setTitle, show } from "./dom";
import { formatCount, formatDuration, formatValue, UNKNOWN } from "./format";
import { icon } from "./icons";
import type { Search, Trial } from "./search_wire";
import { textCell, type Cell, type Column } from "./table";
import { valueText, type TrialAxis } from "./trial_axes";
import { isOpen, lookOf, TRIAL_WORDS } from "./trial_look";
import { barCell } from "./worker_columns";

/** Parameters with a column; the selected trial shows all of its own. */
const MAX_PARAMS = 12;

/** What cells need besides their trial. */
export interface Around {
  quality: ReadonlyMap<number, number>;
  best: number | null;
  goal: TrialAxis | null;
  mode: Search["mode"];
  stoppable: boolean;
  /** The kernel's clock. */
  now: number;
}

/** Which columns there are, so that a table is made anew when that changes. */
export function columnsKey({ params, metric, mode }: Search): string {
  return JSON.stringify([varied(params), metric, mode]);
}

export function trialColumns({ params, metric, mode }: Search, around: Around, ctx: Context): Column<Trial>[] {
  const goal = metric ?? "metric";
  return [
    {
      key: "rank",
      label: "trial",
      title: "In the order they were made",
      width: 68,
      numeric: true,
      always: true,
      first: "ascending",
      value: ({ trial }) => trial,
      cell: () => nameCell(around, ctx),
    },
    {
      key: "state",
      label: "state",
      title: "Running first",
      width: 88,
      always: true,
      value: ({ state }) => TRIAL_WORDS[state].order,
      cell: stateCell,
    },
    {
      key: "best",
      label: metric === null ? "best" : `best ${metric}`,
      title: `The best value of ${goal}${mode === null ? "" : mode === "min" ? "; lower is better" : "; higher is better"}`,
      width: Math.min(180, Math.max(130, 70 + 6.5 * goal.length)),
      numeric: true,
      always: true,
      first: mode === "min" ? "ascending" : "descending",
      value: ({ best }) => best,
      cell: () =>
        barCell((trial) => ({
          share: goodness(trial, around),
          inner: null,
          text: formatValue(trial.best),
          title: trial.best === null || trial.best_step === null ? "" : `at iteration ${formatCount(trial.best_step)}`,
        })),
    },
    ...varied(params).map(
      (name): Column<Trial> => ({
        key: `param-${name}`,
        label: name,
        title: params.find((param) => param.name === name)?.text || name,
        width: Math.min(130, Math.max(70, 20 + 6.5 * name.length)),
        numeric: true,
        value: ({ config }) => {
          const value = config.get(name);
          return value === undefined || typeof value === "boolean" ? (value === undefined ? null : String(value)) : value;
        },
        cell: textCell(({ config }) => valueText(config.get(name)), ({ config }) => valueText(config.get(name))),
      }),
    ),
    {
      key: "latest",
      label: "latest",
      title: `The last value of ${goal}`,
      width: 70,
      numeric: true,
      always: true,
      first: mode === "min" ? "ascending" : "descending",
      value: ({ latest }) => latest,
      cell: textCell(({ latest }) => formatValue(latest)),
    },
    {
      key: "iterations",
      label: "iter.",
      title: "Results reported so far (training iterations)",
      width: 56,
      numeric: true,
      always: true,
      value: ({ iterations }) => iterations,
      cell: textCell(({ iterations }) => formatCount(iterations)),
    },
    {
      key: "time",
      label: "time",
      title: "Time in training so far",
      width: 62,
      numeric: true,
      always: true,
      value: ({ time_s }) => time_s,
      cell: textCell(({ time_s }) => formatDuration(time_s)),
    },
    {
      key: "reason",
      label: "why it ended",
      title: "Why it ended, or what it waits for",
      width: 180,
      always: true,
      value: ({ reason }) => reason,
      cell: reasonCell,
    },
    {
      key: "actions",
      label: "",
      title: "",
      width: 128,
      always: true,
      value: () => "",
      cell: () => actionsCell(around, ctx),
    },
  ];
}

/** Parameters that differ first; of those that don't, none. */
function varied(params: Search["params"]): string[] {
  return params.filter(({ kind }) => kind !== "fixed").map(({ name }) => name).slice(0, MAX_PARAMS);
}

/** How good a trial is between the worst and the best, the best with a full bar. */
function goodness({ best }: Trial, { goal, mode }: Around): number | null {
  if (best === null || goal === null) return null;
  const place = Math.min(1, Math.max(0, goal.scale.place(best)));
  return Number.isNaN(place) ? null : mode === "min" ? 1 - place : place;
}

function nameCell(around: Around, ctx: Context): Cell<Trial> {
  const star = h("span", { class: "rn-best-star", title: "the best so far" }, icon("star"));
  const dot = h("i", { class: "rn-trial-dot" });
  const name = h("span");
  const node = h("td", {}, h("span", { class: "rn-trial-name" }, star, dot, name));
  return {
    node,
    set(trial) {
      const best = trial.trial === around.best;
      const { stroke, alpha } = lookOf(trial, around.quality.get(trial.trial), ctx.theme());
      show(star, best);
      show(dot, !best);
      const known = trial.best !== null || trial.state === "failed";
      const colour = known ? stroke : "transparent";
      if (dot.dataset["colour"] !== colour) {
        dot.dataset["colour"] = colour;
        dot.style.background = colour;
      }
      dot.style.opacity = String(Math.max(0.5, alpha));
      setText(name, String(trial.trial));
      setTitle(node, trial.id ?? "");
    },
  };
}

function stateCell(): Cell<Trial> {
  const badge = h("span");
  const node = h("td", {}, badge);
  return {
    node,
    set({ state, restarts }) {
      const { words, icon: name, tone } = TRIAL_WORDS[state];
      setAttr(badge, "class", `rn-badge rn-tone-${tone}`);
      if (badge.textContent !== words) badge.replaceChildren(icon(name), words);
      setTitle(node, restarts === null || restarts === 0 ? "" : `started again after ${formatCount(restarts)} failures`);
    },
  };
}

function reasonCell(): Cell<Trial> {
  const node = h("td");
  return {
    node,
    set({ reason, state }) {
      setText(node, reason ?? (state === "unknown" ? UNKNOWN : ""));
      setTitle(node, reason ?? "");
      node.classList.toggle("rn-tone-bad", state === "failed");
    },
  };
}

function actionsCell(around: Around, ctx: Context): Cell<Trial> {
  let shown: Trial | null = null;
  const logs = h("button", { class: "rn-quiet", text: "logs", attrs: { type: "button" } });
  logs.addEventListener("click", (event) => {
    event.stopPropagation();
    if (shown !== null) ctx.openLogs(shown.trial);
  });
  const stop = new Ask(() => {
    if (shown !== null) ctx.trialStops.request(shown.trial);
  });
  stop.button.classList.add("rn-quiet");
  const node = h("td", {}, h("span", { class: "rn-actions" }, stop.node, logs));
  return {
    node,
    set(trial) {
      // The row's nodes are another trial's now.
      if (shown?.trial !== trial.trial) stop.cancel();
      shown = trial;
      const phase = ctx.trialStops.phase(trial.trial);
      setAttr(logs, "aria-label", `Logs of trial ${trial.trial}`);
      show(logs, trial.state !== "pending");
      show(stop.node, isOpen(trial) && around.stoppable);
      stop.set({
        icon: "stop",
        words: phase === null ? "stop" : phase === "unanswered" ? "no answer" : "stopping",
        label: `Stop trial ${trial.trial}`,
        question: "sure?",
        yes: "stop",
        enabled: phase === null,
      });
      setTitle(stop.button, phase === "unanswered" ? "The kernel has not answered yet: it may be busy" : "");
    },
  };
}
