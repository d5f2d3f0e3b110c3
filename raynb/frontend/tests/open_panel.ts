/** Opens a panel on a fake model, with a clock that the test moves. */
import { vi } from "vitest";
import widget from "../src/main";
import { FakeModel } from "./fake_model";

export interface OpenPanel {
  model: FakeModel;
  el: HTMLElement;
  root: HTMLElement;
  /** Sends messages and lets the panel draw them. */
  say(content: unknown, buffers?: unknown[]): void;
  /** Lets time pass. */
  wait(ms: number): void;
  get<T extends Element = HTMLElement>(selector: string): T;
  all(selector: string): HTMLElement[];
  text(selector?: string): string;
  close(): void;
}

/** Needs fake timers: `vi.useFakeTimers()` in the test file's beforeEach. */
export function openPanel(manager?: unknown, view: "run" | "tune" = "run"): OpenPanel {
  const model = new FakeModel(view);
  if (manager !== undefined) model.widget_manager = manager;
  const el = document.createElement("div");
  document.body.append(el);
  const close = widget.render({ model, el } as never) as () => void;
  const get = <T extends Element>(selector: string): T => {
    const found = el.querySelector<T>(selector);
    if (found === null) throw new Error(`nothing matches ${selector}`);
    return found;
  };
  const wait = (ms: number): void => void vi.advanceTimersByTime(ms);
  wait(200);
  return {
    model,
    el,
    root: get(".raynb-panel"),
    say(content, buffers) {
      model.emit(content, buffers);
      wait(200);
    },
    wait,
    get,
    all: (selector) => [...el.querySelectorAll<HTMLElement>(selector)],
    text: (selector = ".raynb-panel") => get(selector).textContent ?? "",
    close,
  };
}
