/** Above curves, table and axes: which trials are shown, and the one that is selected. */
import { Ask } from "../ask";
import type { Context, View } from "../context";
import { h, setAttr, setText, setTitle, show, uniqueId } from "../dom";
import { formatBytes, formatCount, formatDuration, formatPercent, formatValue } from "../format";
import { icon } from "../icons";
import type { Changed, PanelState } from "../model";
import type { Trial } from "../search_wire";
import { valueText } from "../trial_axes";
import { isOpen, TRIAL_WORDS } from "../trial_look";
import { brushText, type Scene } from "../trials_shown";

export function mount(root: HTMLElement, ctx: Context): View {
  const { trials } = ctx;
  const id = uniqueId("trial-filter");
  const input = h("input", {
    class: "rn-input rn-trial-filter",
    attrs: {
      id,
      type: "search",
      placeholder: "3, 7-12, running, lr<1e-3",
      title: "Trials (3, 7-12), states and reasons, comparisons of parameters and metrics (lr<1e-3, optimizer=adam, best>=0.9); commas mean or",
      autocomplete: "off",
      spellcheck: "false",
      "data-lm-suppress-shortcuts": "true",
    },
  });
  const chips = h("span", { class: "rn-brush-chips" });
  const count = h("span", { class: "rn-readout", attrs: { role: "status" } });
  const toolbar = h(
    "div",
    { class: "rn-toolbar" },
    h("label", { class: "rn-key", text: "show", attrs: { for: id } }),
    input,
    chips,
    count,
  );
  const inspector = new Inspector(ctx);
  root.append(toolbar, inspector.node);

  input.addEventListener("input", () => {
    trials.filter = input.value;
    ctx.chose();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || input.value === "") return;
    trials.filter = input.value = "";
    ctx.chose();
    event.stopPropagation();
  });

  let brushed = "";

  function update(state: PanelState, changed: Changed): void {
    if (!changed.trials && !changed.run && !changed.choice && !changed.workers && !changed.tick) return;
    const scene = trials.scene(state);
    show(root, scene !== null && scene.trials.length > 0 && ctx.choices.tab !== "logs");
    if (scene === null) return;
    const narrowed = scene.shown.length < scene.trials.length;
    setText(
      count,
      narrowed
        ? `${formatCount(scene.shown.length)} of ${formatCount(scene.trials.length)} trials`
        : `${formatCount(scene.trials.length)} trials`,
    );
    drawChips(scene);
    inspector.set(state, scene);
  }

  function drawChips({ axes }: Scene): void {
    const wanted = axes.flatMap((axis) => {
      const brush = trials.brushes.get(axis.key);
      return brush === undefined ? [] : [{ axis, words: `${axis.label} ${brushText(axis, brush)}` }];
    });
    const key = JSON.stringify(wanted.map(({ words }) => words));
    if (key === brushed) return;
    brushed = key;
    chips.replaceChildren(
      ...wanted.map(({ axis, words }) => {
        const chip = h(
          "button",
          { class: "rn-brush-chip", title: "Show all again", attrs: { type: "button", "aria-label": `Remove the range ${words}` } },
          h("span", { text: words }),
          icon("cross"),
        );
        chip.addEventListener("click", () => {
          trials.brush(axis.key, null);
          ctx.chose();
        });
        return chip;
      }),
    );
  }

  return { update };
}

/** Everything about the selected trial. */
class Inspector {
  readonly node = h("div", { class: "rn-inspector", attrs: { role: "group", "aria-label": "Selected trial" } });
  private readonly name = h("span", { class: "rn-inspector-name" });
  private readonly badge = h("span", { class: "rn-badge" });
  private readonly reason = h("span", { class: "rn-inspector-reason" });
  private readonly stop: Ask;
  private readonly params = h("div", { class: "rn-pairs" });
  private readonly facts = h("div", { class: "rn-pairs" });
  private readonly line = h("pre", { class: "rn-error-line" });
  private readonly text = h("pre", { class: "rn-error-text" });
  private trial: Trial | null = null;
  private written = "";

  constructor(private readonly ctx: Context) {
    this.stop = new Ask(() => {
      if (this.trial !== null) ctx.trialStops.request(this.trial.trial);
    });
    const logs = h("button", { text: "logs", title: "What this trial printed", attrs: { type: "button" } });
    logs.addEventListener("click", () => this.openLogs());
    const close = h("button", { class: "rn-unpin", title: "Deselect", attrs: { type: "button", "aria-label": "Deselect the trial" } }, icon("cross"));
    close.addEventListener("click", () => {
      ctx.trials.selected = null;
      ctx.chose();
    });
    this.node.append(
      h("div", { class: "rn-inspector-head" }, this.name, this.badge, this.reason, this.stop.node, logs, close),
      this.params,
      this.facts,
      this.line,
      this.text,
    );
  }

  set(state: PanelState, scene: Scene): void {
    const { selected } = this.ctx.trials;
    const trial = selected === null ? undefined : state.trials.get(selected);
    show(this.node, trial !== undefined);
    if (trial === undefined) {
      this.trial = null;
      return;
    }
    if (this.trial?.trial !== trial.trial) this.stop.cancel();
    this.trial = trial;
    const { words, icon: name, tone } = TRIAL_WORDS[trial.state];
    setText(this.name, `trial ${trial.trial}`);
    setTitle(this.name, trial.id ?? "");
    setAttr(this.badge, "class", `rn-badge rn-tone-${tone}`);
    if (this.badge.textContent !== words) this.badge.replaceChildren(icon(name), words);
    setText(this.reason, trial.reason ?? "");
    const phase = this.ctx.trialStops.phase(trial.trial);
    show(this.stop.node, isOpen(trial) && state.run?.stoppable === true);
    this.stop.set({
      icon: "stop",
      words: phase === null ? "Stop trial" : phase === "unanswered" ? "no answer yet: the kernel may be busy" : "stopping…",
      label: `Stop trial ${trial.trial}`,
      question: `Stop trial ${trial.trial}?`,
      yes: "stop it",
      enabled: phase === null,
    });
    const params = [...trial.config].map(([key, value]) => [key, valueText(value)] as const);
    const facts = factsOf(trial, state, scene);
    const written = JSON.stringify([params, facts, trial.error]);
    if (written === this.written) return;
    this.written = written;
    this.params.replaceChildren(...params.map(pair));
    this.facts.replaceChildren(...facts.map(pair));
    show(this.line, trial.error?.line != null);
    setText(this.line, trial.error?.line ?? "");
    const said = trial.error === null ? "" : trial.error.text || trial.error.title;
    show(this.text, said !== "");
    if (this.text.textContent !== said) {
      setText(this.text, said);
      // The last lines of a traceback say what happened.
      this.text.scrollTop = this.text.scrollHeight;
    }
  }

  private openLogs(): void {
    if (this.trial === null) return;
    this.ctx.openLogs(this.trial.trial);
  }
}

function pair([name, text]: readonly [string, string]): HTMLElement {
  return h("span", { class: "rn-pair" }, h("span", { class: "rn-key", text: name }), h("span", { class: "rn-value", text }));
}

function factsOf(trial: Trial, state: PanelState, { search }: Scene): (readonly [string, string])[] {
  const facts: (readonly [string, string])[] = [];
  const add = (name: string, text: string | null): void => {
    if (text !== null) facts.push([name, text]);
  };
  if (trial.best !== null) {
    add(`best ${search.metric ?? ""}`, formatValue(trial.best) + (trial.best_step === null ? "" : ` at iteration ${formatCount(trial.best_step)}`));
  }
  for (const [name, value] of trial.last) add(name, formatValue(value));
  add("iterations", trial.iterations === null ? null : formatCount(trial.iterations));
  add("time", trial.time_s === null ? null : formatDuration(trial.time_s));
  add("checkpoints", trial.checkpoint === null ? null : formatCount(trial.checkpoint));
  add("restarts", trial.restarts === null || trial.restarts === 0 ? null : formatCount(trial.restarts));
  add("node", trial.node);
  for (let rank = 0; rank < search.workers; rank++) {
    const worker = state.workers.get(trial.trial * search.workers + rank);
    if (worker === undefined) continue;
    const words = [
      worker.util === null ? null : `${worker.device} ${formatPercent(worker.util)}`,
      worker.rss === null ? null : formatBytes(worker.rss),
      isOpen(trial) ? worker.where : null,
    ].filter((one) => one !== null);
    if (words.length > 0) add(search.workers === 1 ? "worker" : `rank ${rank}`, words.join(", "));
  }
  return facts;
}
