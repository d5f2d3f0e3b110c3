/** The trial under the pointer: what it is, and its parameters. */
import { h, setText, show } from "./dom";
import { formatValue } from "./format";
import type { Trial } from "./search_wire";
import { valueText } from "./trial_axes";
import { TRIAL_WORDS } from "./trial_look";
import type { Scene } from "./trials_shown";

/** Parameters that are named. */
const MAX_ROWS = 10;

export interface TrialTooltip {
  node: HTMLElement;
  /** `left` and `width` in pixels of the box around it; `more` leads the rows. */
  show(left: number, width: number, trial: Trial, scene: Scene, more?: readonly (readonly [string, string])[]): void;
  hide(): void;
}

export function trialTooltip(): TrialTooltip {
  const heading = h("div", { class: "rn-tooltip-title" });
  const list = h("div");
  const node = h("div", { class: "rn-tooltip", attrs: { "aria-live": "polite" } }, heading, list);
  node.hidden = true;
  let written = "";
  return {
    node,
    show(left, width, trial, { search }, more = []) {
      setText(heading, `trial ${trial.trial} · ${trial.reason ?? TRIAL_WORDS[trial.state].words}`);
      const rows = [
        ...more,
        ...(trial.best === null ? [] : [[`best ${search.metric ?? ""}`, formatValue(trial.best)] as const]),
        ...search.params
          .filter(({ kind, name }) => kind !== "fixed" && trial.config.has(name))
          .slice(0, MAX_ROWS)
          .map(({ name }) => [name, valueText(trial.config.get(name))] as const),
      ];
      const key = JSON.stringify(rows);
      if (key !== written) {
        written = key;
        list.replaceChildren(
          ...rows.map(([name, text]) =>
            h("div", { class: "rn-tooltip-row" }, h("span", { text: name }), h("span", { class: "rn-value", text })),
          ),
        );
      }
      show(node, true);
      const own = node.offsetWidth;
      const wanted = left < width / 2 ? left + 16 : left - 16 - own;
      node.style.left = `${Math.round(Math.max(0, Math.min(wanted, width - own)))}px`;
    },
    hide: () => show(node, false),
  };
}
