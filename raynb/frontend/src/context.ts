/** What a view gets from the panel around it. */
import type { Changed, PanelState } from "./model";
import type { StopControl } from "./stop";
import type { Theme } from "./theme";

export interface View {
  update(state: PanelState, changed: Changed): void;
  destroy?(): void;
}

/** What the reader chose, shared by the views. */
export interface Choices {
  /** Null until the reader chose: then the panel picks. */
  metric: string | null;
}

export interface Context {
  readonly choices: Choices;
  readonly stop: StopControl;
  theme(): Theme;
  /** Tells every view that a choice changed. */
  chose(): void;
}

/** The metric to show: the reader's, else the first loss, else the first. */
export function shownMetric(state: PanelState, choices: Choices): string | null {
  const metrics = state.metrics();
  if (choices.metric !== null && state.series.has(choices.metric)) return choices.metric;
  return metrics.find((name) => name.toLowerCase().includes("loss")) ?? metrics[0] ?? null;
}
