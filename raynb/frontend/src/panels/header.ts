/** The run at a glance: name, state, time, size, storage, and Stop. */
import type { Context, View } from "../context";
import { h, setAttr, setText, setTitle, show } from "../dom";
import { formatCount, formatDuration, formatShort, formatValue, UNKNOWN } from "../format";
import { icon } from "../icons";
import type { PanelState } from "../model";
import type { Run } from "../wire";
import { droppedText, elapsedOf, field, isOver, StateBadge } from "./head_parts";

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
  const stop = h("button", { class: "rn-stop", attrs: { type: "button" } });
  const stopNote = h("span", { class: "rn-stop-note", attrs: { role: "status" } });
  const [elapsed, elapsedField] = field("elapsed");
  const [size, sizeField] = field("workers");
  const [step, stepField] = field("step");
  const [rows, rowsField] = field("data");
  const [restarts, restartsField] = field("restarts");
  const [best, bestField] = field("best");
  const [storage, storageField] = field("storage");
  storageField.classList.add("rn-storage");
  const dropped = h("span", { class: "rn-dropped" });
  root.append(
    h("div", { class: "rn-title" }, name, status, stopNote, stop),
    h(
      "div",
      { class: "rn-meta" },
      elapsedField,
      sizeField,
      stepField,
      rowsField,
      restartsField,
      bestField,
      dropped,
      storageField,
    ),
  );
  stop.addEventListener("click", () => ctx.stop.request());

  function update(state: PanelState): void {
    const run = state.run;
    show(root, run !== null);
    if (run === null) return;
    setText(name, run.name);
    setTitle(name, run.name);
    badge.set(run.state);
    setText(message, run.message);
    setTitle(message, run.message);
    setText(elapsed, formatDuration(elapsedOf(run, state.now())));
    setText(size, formatCount(run.world_size));
    updateTotals(state);
    show(restartsField, run.attempt > 0);
    // Attempts count from 0: the second attempt is the first restart.
    setText(restarts, formatCount(run.attempt));
    show(bestField, run.best !== null);
    setText(best, run.best === null ? "" : bestText(run.best));
    setText(storage, run.storage ?? UNKNOWN);
    setTitle(storage, run.storage ?? "");
    const lost = droppedText(run);
    show(dropped, lost !== "");
    setText(dropped, lost);
    updateStop(run);
  }

  function updateTotals(state: PanelState): void {
    let furthest: number | null = null;
    let rate: number | null = null;
    for (const worker of state.workers.values()) {
      if (worker.step !== null) furthest = Math.max(furthest ?? 0, worker.step);
      if (worker.rows_rate !== null) rate = (rate ?? 0) + worker.rows_rate;
    }
    show(stepField, furthest !== null);
    setText(step, formatCount(furthest));
    show(rowsField, rate !== null);
    setText(rows, `${formatShort(rate)} rows/s`);
  }

  function updateStop(run: Run): void {
    const { phase, note, enabled } = ctx.stop;
    const over = isOver(run.state);
    show(stop, !over);
    const words = phase === "idle" ? "Stop" : "stopping…";
    if (stop.textContent !== words) stop.replaceChildren(icon("stop"), words);
    if (stop.disabled === enabled) stop.disabled = !enabled;
    setAttr(stop, "aria-label", phase === "idle" ? `Stop the run ${run.name}` : "stopping");
    setText(stopNote, over ? "" : note);
    show(stopNote, !over && note !== "");
  }

  return { update };
}

function bestText({ metric, value, step, rank }: NonNullable<Run["best"]>): string {
  const where = [
    step === null ? "" : ` at step ${formatCount(step)}`,
    rank === null ? "" : `, rank ${rank}`,
  ].join("");
  return `${metric} ${formatValue(value)}${where}`;
}
