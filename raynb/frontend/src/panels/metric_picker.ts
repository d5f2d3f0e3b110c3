/** Which metrics have a chart: a button each, with a search where there are many. */
import { h, setAttr, setText, show } from "../dom";

/** From so many metrics on they can be searched. */
const SEARCH_FROM = 10;
/** Charts at a time: more would be too small to read and slow to draw. */
export const MAX_CHARTS = 8;

export class MetricPicker {
  readonly node: HTMLElement;
  private readonly search = h("input", {
    class: "rn-search",
    attrs: {
      type: "search",
      placeholder: "find a metric",
      "aria-label": "Find a metric",
      "data-lm-suppress-shortcuts": "true",
    },
  });
  private readonly list = h("div", {
    class: "rn-metrics",
    attrs: { role: "group", "aria-label": "Metrics with a chart" },
  });
  private readonly none = h("span", { class: "rn-note", text: "no such metric" });
  private readonly buttons = new Map<string, HTMLButtonElement>();
  private shown: string[] = [];

  constructor(private readonly onChoice: (metrics: string[]) => void) {
    this.node = h("div", { class: "rn-picker" }, this.search, this.list);
    this.list.append(this.none);
    this.search.addEventListener("input", () => this.filter());
  }

  update(metrics: readonly string[], shown: string[]): void {
    this.shown = shown;
    for (const [name, button] of this.buttons) {
      if (metrics.includes(name)) continue;
      button.remove();
      this.buttons.delete(name);
    }
    for (const name of metrics) {
      let button = this.buttons.get(name);
      if (button === undefined) {
        button = this.makeButton(name);
        this.buttons.set(name, button);
        this.none.before(button);
      }
      setAttr(button, "aria-pressed", String(shown.includes(name)));
    }
    // Of one metric there is nothing to choose.
    show(this.node, metrics.length > 1);
    show(this.search, metrics.length >= SEARCH_FROM);
    this.filter();
  }

  private filter(): void {
    const words = this.search.hidden ? "" : this.search.value.trim().toLowerCase();
    let found = 0;
    for (const [name, button] of this.buttons) {
      const fits = name.toLowerCase().includes(words);
      show(button, fits);
      if (fits) found += 1;
    }
    show(this.none, found === 0 && this.buttons.size > 0);
  }

  private makeButton(name: string): HTMLButtonElement {
    const button = h("button", {
      class: "rn-toggle rn-metric",
      title: `${name}\nClick: show or hide. Alt-click or double click: only this one.`,
      attrs: { type: "button" },
    });
    setText(button, name);
    button.addEventListener("click", (event) => {
      if (event.altKey) this.onChoice([name]);
      else this.toggle(name);
    });
    button.addEventListener("dblclick", () => this.onChoice([name]));
    return button;
  }

  private toggle(name: string): void {
    const others = this.shown.filter((one) => one !== name);
    const next = others.length === this.shown.length ? [...others, name] : others;
    // One chart stays; past the bound, the one that has been there longest leaves.
    if (next.length > 0) this.onChoice(next.slice(-MAX_CHARTS));
  }
}
