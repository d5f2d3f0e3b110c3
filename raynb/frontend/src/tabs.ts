/** The panel's tabs: one list of buttons, one visible panel, arrow keys in between. */
import { h, setAttr, setText, show, uniqueId } from "./dom";

export const TABS = ["overview", "parameters", "workers", "data", "logs", "hints"] as const;
export type TabName = (typeof TABS)[number];

const WORDS: Record<TabName, string> = {
  overview: "Overview",
  parameters: "Parameters",
  workers: "Workers",
  data: "Data",
  logs: "Logs",
  hints: "Hints",
};

export interface Badge {
  count: number;
  /** What is counted, for those who hear it: "3 new error lines". */
  words: string;
  tone: "bad" | "busy" | "idle";
}

interface Tab {
  button: HTMLButtonElement;
  badge: HTMLElement;
  panel: HTMLElement;
}

export class Tabs {
  readonly list = h("div", {
    class: "rn-tabs",
    attrs: { role: "tablist", "aria-label": "Views", "data-lm-suppress-shortcuts": "true" },
  });
  private readonly tabs: ReadonlyMap<TabName, Tab>;
  current: TabName;

  constructor(
    private readonly names: readonly TabName[],
    first: TabName,
    private readonly onChange: (tab: TabName) => void,
  ) {
    this.current = names.includes(first) ? first : (names[0] ?? first);
    this.tabs = new Map(names.map((name) => [name, this.makeTab(name)]));
    this.list.addEventListener("keydown", (event) => this.onKey(event));
    this.show();
  }

  get panels(): HTMLElement[] {
    return [...this.tabs.values()].map(({ panel }) => panel);
  }

  panel(name: TabName): HTMLElement {
    return this.tab(name).panel;
  }

  select(name: TabName, focus = false): void {
    if (focus) this.tab(name).button.focus();
    if (name === this.current) return;
    this.current = name;
    this.show();
    this.onChange(name);
  }

  setBadge(name: TabName, { count, words, tone }: Badge): void {
    const tab = this.tabs.get(name);
    if (tab === undefined) return;
    const { button, badge } = tab;
    show(badge, count > 0);
    setText(badge, count > 99 ? "99+" : count > 0 ? String(count) : "");
    setAttr(badge, "class", `rn-tab-badge rn-tone-${tone}`);
    setAttr(button, "aria-label", count > 0 ? `${WORDS[name]}, ${words}` : WORDS[name]);
  }

  private tab(name: TabName): Tab {
    const tab = this.tabs.get(name);
    if (tab === undefined) throw new Error(`no tab ${name}`);
    return tab;
  }

  private makeTab(name: TabName): Tab {
    const id = uniqueId(`tab-${name}`);
    const badge = h("span", { class: "rn-tab-badge" });
    badge.hidden = true;
    const button = h(
      "button",
      {
        class: "rn-tab",
        attrs: { type: "button", role: "tab", id, "aria-controls": `${id}-panel` },
      },
      WORDS[name],
      badge,
    );
    button.dataset["tab"] = name;
    button.addEventListener("click", () => this.select(name));
    this.list.append(button);
    const panel = h("div", {
      class: "rn-tab-panel",
      attrs: { role: "tabpanel", id: `${id}-panel`, "aria-labelledby": id },
    });
    panel.dataset["tab"] = name;
    return { button, badge, panel };
  }

  private show(): void {
    for (const [name, { button, panel }] of this.tabs) {
      const chosen = name === this.current;
      setAttr(button, "aria-selected", String(chosen));
      // One stop for the Tab key; arrows go on from there.
      button.tabIndex = chosen ? 0 : -1;
      show(panel, chosen);
    }
  }

  private onKey(event: KeyboardEvent): void {
    const at = this.names.indexOf(this.current);
    const to: Record<string, number> = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      Home: 0,
      End: this.names.length - 1,
    };
    const next = to[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const name = this.names[(next + this.names.length) % this.names.length];
    if (name !== undefined) this.select(name, true);
  }
}
