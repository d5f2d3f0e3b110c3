/**
 * The live panel of a run, as an anywidget.
 *
 * Messages go into the state as they come; views are drawn at most once a
 * frame, and charts and tables less often, so that the page stays quick however
 * much a run says. A view that fails is reported in the panel and the others
 * go on.
 */
import type { Render } from "@anywidget/types";
import type { Choices, Context, View } from "./context";
import { h, setText, show } from "./dom";
import { changes, PanelState, type Changed } from "./model";
import * as chartPanel from "./panels/chart_panel";
import * as errorPanel from "./panels/error";
import * as events from "./panels/events";
import * as header from "./panels/header";
import * as logs from "./panels/logs";
import * as problems from "./panels/problems";
import * as workers from "./panels/workers";
import { StopControl } from "./stop";
import { detectTheme, watchTheme, type Theme } from "./theme";
import { decode, type Outgoing } from "./wire";

/** Milliseconds between drawings of chart and workers; many ranks draw less often. */
const DRAW_MS = 100;
const DRAW_MANY_MS = 500;
const MANY_RANKS = 64;
/** How long a snapshot may take before the panel says that it waits. */
const HELLO_MS = 3_000;
const HELLO_AGAIN_MS = 15_000;

/** The part of anywidget's model that the panel uses. */
export interface PanelModel {
  on(name: "msg:custom", callback: (content: unknown, buffers: unknown[]) => void): void;
  off(name: "msg:custom", callback: (content: unknown, buffers: unknown[]) => void): void;
  send(content: Outgoing): void;
  widget_manager?: unknown;
}

const VIEWS = [
  { name: "header", view: header, slow: false },
  { name: "error", view: errorPanel, slow: false },
  { name: "chart", view: chartPanel, slow: true },
  { name: "workers", view: workers, slow: true },
  { name: "logs", view: logs, slow: false },
  { name: "events", view: events, slow: false },
  { name: "problems", view: problems, slow: false },
] as const;

interface Mounted {
  name: string;
  slow: boolean;
  root: HTMLElement;
  view: View;
}

export class Panel {
  readonly state = new PanelState();
  private readonly root = h("div", { class: "raynb-panel" });
  private readonly notice = h("div", { class: "rn-notice", attrs: { role: "status" } });
  private readonly choices: Choices = { metric: null };
  private readonly views: Mounted[] = [];
  private readonly stop: StopControl;
  private readonly cleanups: (() => void)[] = [];
  private theme: Theme = "light";
  private pending: { fast: Changed; slow: Changed } = { fast: changes(), slow: changes() };
  private frame = 0;
  private slowTimer: ReturnType<typeof setTimeout> | null = null;
  private lastSlow = Number.NEGATIVE_INFINITY;
  private helloSent = Number.NEGATIVE_INFINITY;
  private helloPending = false;
  private helloTimer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    private readonly model: PanelModel,
    el: HTMLElement,
  ) {
    this.stop = new StopControl({
      send: (message) => this.send(message),
      interrupt: kernelInterrupt(model),
      changed: () => this.invalidate({ ...changes(), run: true }),
    });
    this.root.setAttribute("role", "region");
    this.root.setAttribute("aria-label", "Training run");
    el.append(this.root);
    this.applyTheme();
    this.cleanups.push(watchTheme(() => this.applyTheme()));
    this.mountViews();
    this.listen();
    this.hello();
  }

  destroy(): void {
    for (const cleanup of this.cleanups.splice(0)) cleanup();
    cancelAnimationFrame(this.frame);
    if (this.slowTimer !== null) clearTimeout(this.slowTimer);
    if (this.helloTimer !== null) clearTimeout(this.helloTimer);
    this.stop.destroy();
    for (const { view } of this.views) view.destroy?.();
    this.root.remove();
  }

  private mountViews(): void {
    const context: Context = {
      choices: this.choices,
      stop: this.stop,
      theme: () => this.theme,
      chose: () => this.invalidate({ ...changes(), choice: true }, true),
    };
    this.notice.textContent = "connecting to the kernel…";
    this.root.append(this.notice);
    for (const { name, view, slow } of VIEWS) {
      const root = h("section", { class: `rn-section rn-${name}-view` });
      this.root.append(root);
      try {
        this.views.push({ name, slow, root, view: view.mount(root, context) });
      } catch (error) {
        this.fail(name, error);
      }
    }
    this.invalidate(changes(true), true);
  }

  private listen(): void {
    const onMessage = (content: unknown, buffers: unknown[]): void => {
      try {
        this.receive(content, buffers);
      } catch (error) {
        this.fail("message", error);
      }
    };
    this.model.on("msg:custom", onMessage);
    this.cleanups.push(() => this.model.off("msg:custom", onMessage));
    const clock = setInterval(() => {
      const run = this.state.run;
      if (run !== null && run.started !== null && run.ended === null) {
        this.invalidate({ ...changes(), tick: true });
      }
    }, 1_000);
    this.cleanups.push(() => clearInterval(clock));
  }

  private receive(content: unknown, buffers: unknown[]): void {
    const { message, problems: found } = decode(content, buffers ?? []);
    for (const problem of found) this.state.report(problem);
    if (found.length > 0) this.invalidate(changes());
    if (message === null) return;
    if (message.kind === "ack") {
      if (message.of === "stop") this.stop.onAck();
      return;
    }
    const changed = this.state.apply(message);
    if (message.kind === "snapshot") {
      this.helloPending = false;
      this.setNotice("");
    }
    if (message.run !== null) this.stop.onRun(message.run);
    if (this.state.incomplete) this.hello();
    this.invalidate(changed);
  }

  /**
   * Asks for a snapshot. A busy kernel finds all questions at once when it is
   * free again, so the next one waits for an answer or a good while.
   */
  private hello(): void {
    const patience = this.helloPending ? HELLO_AGAIN_MS : HELLO_MS;
    if (Date.now() - this.helloSent < patience) return;
    this.helloSent = Date.now();
    this.helloPending = true;
    this.send({ kind: "hello" });
    if (this.helloTimer !== null) clearTimeout(this.helloTimer);
    this.helloTimer = setTimeout(() => {
      if (this.helloPending) this.setNotice("waiting for the kernel; it may be busy");
    }, HELLO_MS);
  }

  private send(message: Outgoing): void {
    try {
      this.model.send(message);
    } catch (error) {
      this.fail("connection", error);
    }
  }

  private setNotice(text: string): void {
    setText(this.notice, text);
    show(this.notice, text !== "");
  }

  private applyTheme(): void {
    const theme = detectTheme(this.root);
    if (theme === this.theme && this.root.dataset["theme"] !== undefined) return;
    this.theme = theme;
    this.root.dataset["theme"] = theme;
    this.invalidate({ ...changes(), choice: true }, true);
  }

  /** Remembers what to redraw; `now` does not wait for the slow views' turn. */
  private invalidate(changed: Changed, now = false): void {
    merge(this.pending.fast, changed);
    merge(this.pending.slow, changed);
    if (now) this.lastSlow = Number.NEGATIVE_INFINITY;
    this.request();
  }

  private request(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    const fast = this.pending.fast;
    this.pending.fast = changes();
    this.drawViews(false, fast);

    if (!any(this.pending.slow)) return;
    const many = Math.max(this.state.workers.size, this.state.run?.world_size ?? 0) > MANY_RANKS;
    const wait = this.lastSlow + (many ? DRAW_MANY_MS : DRAW_MS) - performance.now();
    if (wait > 0) {
      this.slowTimer ??= setTimeout(() => {
        this.slowTimer = null;
        this.request();
      }, wait);
      return;
    }
    this.lastSlow = performance.now();
    const slow = this.pending.slow;
    this.pending.slow = changes();
    this.drawViews(true, slow);
  }

  private drawViews(slow: boolean, changed: Changed): void {
    for (const mounted of this.views) {
      if (mounted.slow !== slow) continue;
      try {
        mounted.view.update(this.state, changed);
      } catch (error) {
        this.fail(mounted.name, error);
      }
    }
  }

  private fail(where: string, error: unknown): void {
    const what = error instanceof Error ? error.message : String(error);
    // Only a new problem asks for a redraw, or a failing view would loop.
    if (this.state.report(`the panel's ${where} failed: ${what}`)) this.invalidate(changes());
    console.error("raynb:", error);
  }
}

/** JupyterLab's widget manager knows its kernel; other front ends may not. */
function kernelInterrupt(model: PanelModel): (() => Promise<unknown>) | null {
  const member = (owner: unknown, name: string): unknown =>
    typeof owner === "object" && owner !== null ? Reflect.get(owner, name) : undefined;
  const find = (): unknown => member(model.widget_manager, "kernel");
  if (typeof member(find(), "interrupt") !== "function") return null;
  return async () => {
    // Looked up again: the kernel may have been replaced since.
    const kernel = find();
    const interrupt = member(kernel, "interrupt");
    if (typeof interrupt !== "function") throw new Error("no kernel to interrupt");
    await Reflect.apply(interrupt, kernel, []);
  };
}

function merge(into: Changed, from: Changed): void {
  for (const key of Object.keys(into) as (keyof Changed)[]) into[key] ||= from[key];
}

function any(changed: Changed): boolean {
  return Object.values(changed).some(Boolean);
}

const render: Render = ({ model, el }) => {
  const panel = new Panel(model, el);
  return () => panel.destroy();
};

export default { render };
