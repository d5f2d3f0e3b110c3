/**
 * The live panel of a run or of a search, as an anywidget.
 *
 * Messages go into the state as they come; views are drawn at most once a
 * frame, charts and tables less often, and views that nobody sees not at all,
 * so that the page stays quick however much a run says. A view that fails is
 * reported in the panel and the others go on.
 */
import type { Render } from "@anywidget/types";
import { loadChoices, saveChoices, type Choices } from "./choices";
import type { Context, View } from "./context";
import { decode } from "./decode";
import { h, setText, show } from "./dom";
import { plural } from "./format";
import { RUN_LAYOUT, SEARCH_LAYOUT, type Layout } from "./layouts";
import { changes, PanelState, type Changed } from "./model";
import { saveFile } from "./save";
import { StopControl } from "./stop";
import { Tabs, type TabName } from "./tabs";
import { detectTheme, watchTheme, type Theme } from "./theme";
import { TrialStops } from "./trial_stops";
import { TrialsShown } from "./trials_shown";
import { MAX_PINNED, type Outgoing } from "./wire";

/**
 * Milliseconds between drawings of chart and workers, at least; many ranks draw
 * less often. Below the kernel's 100 ms between messages: each is drawn as it comes.
 */
const DRAW_MS = 50;
const DRAW_MANY_MS = 500;
/** More rows than this are drawn less often. */
const MANY = 64;
/**
 * A frame that took longer than this was too much: the next drawing waits so many times as long,
 * but no longer than a person takes for live.
 */
const LONG_FRAME_MS = 34;
const REST = 4;
const DRAW_SLOW_MS = 250;
/** How long a snapshot may take before the panel says that it waits. */
const HELLO_MS = 3_000;
const HELLO_AGAIN_MS = 15_000;
/** In which the record comes, where it does. */
const RECORD_MS = 1_500;

/** The part of anywidget's model that the panel uses. */
export interface PanelModel {
  on(name: "msg:custom", callback: (content: unknown, buffers: unknown[]) => void): void;
  off(name: "msg:custom", callback: (content: unknown, buffers: unknown[]) => void): void;
  send(content: Outgoing): void;
  get?(name: "run_name" | "view"): unknown;
  widget_manager?: unknown;
}

interface Mounted {
  name: string;
  slow: boolean;
  tab: TabName | null;
  view: View;
  /** What changed since the view was last drawn, and when that was. */
  pending: Changed;
  drawn: number;
}

export class Panel {
  readonly state = new PanelState();
  private readonly root = h("div", { class: "raynb-panel" });
  private readonly notice = h("div", { class: "rn-notice", attrs: { role: "status" } });
  private readonly runName: string;
  private readonly choices: Choices;
  private readonly tabs: Tabs;
  private readonly views: Mounted[] = [];
  private readonly stop: StopControl;
  private readonly layout: Layout;
  private readonly trials = new TrialsShown();
  private readonly trialStops: TrialStops;
  private readonly cleanups: (() => void)[] = [];
  private theme: Theme = "light";
  /** Whether the panel is scrolled into view. */
  private seen = true;
  private frame = 0;
  /** Milliseconds between drawings of the slow views, as this page can bear them. */
  private pace = DRAW_MS;
  private paceFrame = 0;
  private badgesDue = true;
  private errorLinesSeen = 0;
  private slowTimer: ReturnType<typeof setTimeout> | null = null;
  private helloSent = Number.NEGATIVE_INFINITY;
  private helloPending = false;
  private helloTimer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    private readonly model: PanelModel,
    el: HTMLElement,
  ) {
    const name = model.get?.("run_name");
    this.runName = typeof name === "string" ? name : "";
    this.layout = model.get?.("view") === "tune" ? SEARCH_LAYOUT : RUN_LAYOUT;
    this.choices = loadChoices(this.runName);
    this.tabs = new Tabs(this.layout.tabs, this.choices.tab, (tab) => {
      this.choices.tab = tab;
      this.chose();
    });
    this.stop = new StopControl({
      send: (message) => this.send(message),
      interrupt: kernelInterrupt(model),
      changed: () => this.invalidate({ ...changes(), run: true }),
    });
    this.trialStops = new TrialStops(
      (trial) => this.send({ kind: "stop_trial", trial }),
      () => this.invalidate({ ...changes(), choice: true }),
    );
    this.root.setAttribute("role", "region");
    this.root.setAttribute("aria-label", this.layout.label);
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
    cancelAnimationFrame(this.paceFrame);
    if (this.slowTimer !== null) clearTimeout(this.slowTimer);
    if (this.helloTimer !== null) clearTimeout(this.helloTimer);
    this.stop.destroy();
    this.trialStops.destroy();
    for (const { view } of this.views) view.destroy?.();
    this.root.remove();
  }

  private mountViews(): void {
    const context: Context = {
      choices: this.choices,
      stop: this.stop,
      trials: this.trials,
      trialStops: this.trialStops,
      theme: () => this.theme,
      point: (trial) => this.point(trial),
      chose: () => this.chose(),
      pin: (rank) => this.pin(rank),
      download: (rank) => this.send({ kind: "download", rank }),
      openLogs: (trial) => this.openLogs(trial),
      open: (tab) => this.tabs.select(tab, true),
    };
    this.notice.textContent = "connecting to the kernel…";
    const above = h("div", { class: "rn-above" });
    const shared = h("div", { class: "rn-shared" });
    this.root.append(this.notice, above, this.tabs.list, shared, ...this.tabs.panels);
    for (const { name, view, slow, tab, below } of this.layout.views) {
      const root = h("section", { class: `rn-section rn-${name}-view` });
      (tab !== null ? this.tabs.panel(tab) : below === true ? shared : above).append(root);
      try {
        const mounted = view.mount(root, context);
        const drawn = Number.NEGATIVE_INFINITY;
        this.views.push({ name, slow, tab, view: mounted, pending: changes(true), drawn });
      } catch (error) {
        this.fail(name, error);
      }
    }
    this.invalidate(changes(true), true);
  }

  private chose(): void {
    saveChoices(this.runName, this.choices);
    this.invalidate({ ...changes(), choice: true }, true);
  }

  private point(trial: number | null): void {
    if (trial === this.trials.pointed) return;
    this.trials.pointed = trial;
    this.invalidate({ ...changes(), pointed: true }, true);
  }

  private openLogs(trial: number): void {
    const workers = this.state.run?.search?.workers ?? 1;
    this.choices.logs = trial * workers;
    this.tabs.select("logs", true);
    this.chose();
  }

  private pin(rank: number): void {
    const { pinned } = this.choices;
    if (!pinned.delete(rank)) {
      const [oldest] = pinned;
      if (pinned.size >= MAX_PINNED && oldest !== undefined) pinned.delete(oldest);
      pinned.add(rank);
    }
    this.send({ kind: "pin", ranks: [...pinned] });
    this.chose();
  }

  /** A kernel that knows other pins than this view: ours, or where we have none, its. */
  private agreeOnPins(): void {
    const { pinned } = this.choices;
    const theirs = this.state.focus.pinned;
    if (pinned.size === 0) for (const rank of theirs) pinned.add(rank);
    else if (String([...pinned]) !== String(theirs)) this.send({ kind: "pin", ranks: [...pinned] });
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
    if (typeof IntersectionObserver === "function") {
      const onSight = ([entry]: IntersectionObserverEntry[]): void => {
        this.seen = entry?.isIntersecting ?? true;
        if (this.seen) this.request();
      };
      const sight = new IntersectionObserver(onSight, { rootMargin: "200px" });
      sight.observe(this.root);
      this.cleanups.push(() => sight.disconnect());
    }
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
    if (found.length > 0) this.invalidate({ ...changes(), problems: true });
    if (message === null) return;
    if (message.kind === "ack") {
      if (message.of === "stop") this.stop.onAck();
      if (message.of === "stop_trial" && message.trial !== null) this.trialStops.onAck(message.trial);
      if (message.of === "end") this.stayWhereTheRecordIsNot();
      return;
    }
    if (message.kind === "file") {
      saveFile(message.name, message.data);
      this.invalidate(this.state.received(message));
      return;
    }
    const changed = this.state.apply(message);
    if (message.kind === "snapshot") {
      this.helloPending = false;
      this.setNotice("");
      this.agreeOnPins();
    }
    if (message.run !== null) this.stop.onRun(message.run);
    if (changed.trials) this.trialStops.onTrials(this.state.trials);
    if (this.state.incomplete) this.hello();
    this.invalidate(changed);
  }

  /**
   * The record takes a view's place at the run's end, but not on a page that was loaded after the
   * cell had begun: there, the panel stays as it is.
   */
  private stayWhereTheRecordIsNot(): void {
    const asked = setTimeout(() => {
      if (this.root.isConnected) this.send({ kind: "keep" });
    }, RECORD_MS);
    this.cleanups.push(() => clearTimeout(asked));
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
    for (const mounted of this.views) {
      merge(mounted.pending, changed);
      if (now) mounted.drawn = Number.NEGATIVE_INFINITY;
    }
    if (changed.hints || changed.logs || changed.choice) this.badgesDue = true;
    this.request();
  }

  private request(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.seen) this.draw();
    });
  }

  /** Milliseconds between drawings of the slow views. */
  private pause(): number {
    if (this.layout === SEARCH_LAYOUT) {
      return this.state.trials.size > MANY ? DRAW_SLOW_MS : this.pace;
    }
    const ranks = Math.max(this.state.workers.size, this.state.run?.world_size ?? 0);
    return ranks > MANY ? DRAW_MANY_MS : this.pace;
  }

  private draw(): void {
    const pause = this.pause();
    const now = performance.now();
    let soonest = Number.POSITIVE_INFINITY;
    for (const mounted of this.views) {
      const { tab, slow, drawn, pending } = mounted;
      if ((tab !== null && tab !== this.tabs.current) || !any(pending)) continue;
      const wait = slow ? drawn + pause - now : 0;
      if (wait > 0) {
        soonest = Math.min(soonest, wait);
        continue;
      }
      if (slow) this.measurePace(now);
      mounted.drawn = now;
      mounted.pending = changes();
      try {
        mounted.view.update(this.state, pending);
      } catch (error) {
        this.fail(mounted.name, error);
      }
    }
    if (this.badgesDue) this.showBadges();
    if (soonest === Number.POSITIVE_INFINITY || this.slowTimer !== null) return;
    this.slowTimer = setTimeout(() => {
      this.slowTimer = null;
      this.request();
    }, soonest);
  }

  /** Drawing ends after the code did, with the pixels: the next frame tells when. */
  private measurePace(begun: number): void {
    cancelAnimationFrame(this.paceFrame);
    this.paceFrame = requestAnimationFrame(() => {
      const took = performance.now() - begun;
      this.pace = took > LONG_FRAME_MS ? Math.min(DRAW_SLOW_MS, REST * took) : DRAW_MS;
    });
  }

  private showBadges(): void {
    this.badgesDue = false;
    const { errorLines } = this.state;
    if (this.tabs.current === "logs") this.errorLinesSeen = errorLines;
    const fresh = errorLines - this.errorLinesSeen;
    this.tabs.setBadge("logs", { count: fresh, words: plural(fresh, "new error line"), tone: "busy" });
    const hints = this.state.activeHints();
    const tone = { error: "bad", warn: "busy", info: "idle" } as const;
    this.tabs.setBadge("hints", {
      count: hints.length,
      words: plural(hints.length, "hint"),
      tone: tone[hints[0]?.level ?? "info"],
    });
  }

  private fail(where: string, error: unknown): void {
    const what = error instanceof Error ? error.message : String(error);
    // Only a new problem asks for a redraw, or a failing view would loop.
    if (this.state.report(`the panel's ${where} failed: ${what}`)) this.invalidate({ ...changes(), problems: true });
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
