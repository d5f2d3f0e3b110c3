/** What a view gets from the panel around it. */
import type { Choices } from "./choices";
import type { Changed, PanelState } from "./model";
import type { StopControl } from "./stop";
import type { TabName } from "./tabs";
import type { Theme } from "./theme";
import type { TrialStops } from "./trial_stops";
import type { TrialsShown } from "./trials_shown";

export interface View {
  /** Called at most once a frame, and not while the view's tab is hidden. */
  update(state: PanelState, changed: Changed): void;
  destroy?(): void;
}

export interface Context {
  readonly choices: Choices;
  readonly stop: StopControl;
  /** Of a search: the trials that the reader looks at, and those asked to stop. */
  readonly trials: TrialsShown;
  readonly trialStops: TrialStops;
  theme(): Theme;
  /** Tells every view that a choice changed, and keeps it. */
  chose(): void;
  /** Marks the trial under the pointer in every view; null: none. */
  point(trial: number | null): void;
  /** Gives a rank a line of its own in every chart, or takes it away. */
  pin(rank: number): void;
  /** Asks the kernel for a rank's whole log; it comes as a file to save. */
  download(rank: number): void;
  /** Shows what a trial printed. */
  openLogs(trial: number): void;
  /** Brings a tab to the front. */
  open(tab: TabName): void;
}

/** Charts that open by themselves. */
const FIRST_CHARTS = 2;

/** The metrics to show: the reader's, else the first loss and the one that counts. */
export function shownMetrics(state: PanelState, choices: Choices): string[] {
  const metrics = state.metrics();
  if (choices.metrics !== null) {
    const chosen = choices.metrics.filter((name) => metrics.includes(name));
    if (chosen.length > 0) return chosen;
  }
  const loss = metrics.find((name) => name.toLowerCase().includes("loss")) ?? metrics[0];
  const best = state.run?.best?.metric;
  const goal =
    metrics.find((name) => name === best && name !== loss) ??
    metrics.find((name) => /acc|f1|auc|iou|bleu|score/i.test(name) && name !== loss) ??
    metrics.find((name) => name.toLowerCase().includes("loss") && name !== loss);
  return [loss, goal].filter((name) => name !== undefined).slice(0, FIRST_CHARTS);
}

/** The one metric where there is room for one. */
export function shownMetric(state: PanelState, choices: Choices): string | null {
  return shownMetrics(state, choices)[0] ?? null;
}
