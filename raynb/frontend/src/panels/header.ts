/** The run at a glance: name, state, time, size, storage, and Stop. */
import type { Context, View } from "../context";
import { h, setAttr, setText, setTitle, show } from "../dom";
import { formatCount, formatDuration, formatShort, formatValue, UNKNOWN } from "../format";
import { icon } from "../icons";
import type { PanelState } from "../model";
import type { Run } from "../wire";
import { elapsedOf, field, isOver, Title } from "./head_parts";

export function mount(root: HTMLElement, ctx: Context): View {
  const stop = h("button", { class: "rn-stop", attrs: { type: "button" } });
  const title = new Title(stop);
  const [elapsed, elapsedField] = field("elapsed");
  const [size, sizeField] = field("workers");
  const [step, stepField] = field("step");
  const [rows, rowsField] = field("data");
  const [restarts, restartsField] = field("restarts");
  const [best, bestField] = field("best");
  const [storage, storageField] = field("storage");
  storageField.classList.add("rn-storage");
  root.append(
    title.node,
    h(
      "div",
      { class: "rn-meta" },
      elapsedField,
      sizeField,
      stepField,
      rowsField,
      restartsField,
      bestField,
      title.dropped,
      storageField,
    ),
  );
  stop.addEventListener("click", () => ctx.stop.request());

  function update(state: PanelState): void {
    const run = state.run;
    show(root, run !== null);
    if (run === null) return;
    title.set(run, ctx.stop.note);
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
    const { phase, enabled } = ctx.stop;
    show(stop, !isOver(run.state));
    const words = phase === "idle" ? "Stop" : "stopping…";
    if (stop.textContent !== words) stop.replaceChildren(icon("stop"), words);
    if (stop.disabled === enabled) stop.disabled = !enabled;
    setAttr(stop, "aria-label", phase === "idle" ? `Stop the run ${run.name}` : "stopping");
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
