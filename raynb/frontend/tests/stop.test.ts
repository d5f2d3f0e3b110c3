import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { delta, run, snapshot } from "./messages";
import { openPanel, type OpenPanel } from "./open_panel";

let panel: OpenPanel;
beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

function open(manager?: unknown, over: Parameters<typeof run>[0] = {}): HTMLButtonElement {
  panel = openPanel(manager);
  panel.say(snapshot({ run: run(over) }));
  return panel.get<HTMLButtonElement>(".rn-stop");
}

const stops = (): number => panel.model.sent.filter((message) => message.kind === "stop").length;
const note = (): string => panel.text(".rn-stop-note");

describe("the stop button", () => {
  it("asks, and waits for the kernel's answer", async () => {
    const interrupt = vi.fn(() => Promise.resolve());
    const button = open({ kernel: { interrupt } });
    expect(button.textContent).toBe("Stop");
    button.click();
    button.click();
    expect(stops()).toBe(1);
    panel.wait(50);
    expect(button.textContent).toBe("stopping…");
    expect(button.disabled).toBe(true);
    panel.say({ kind: "ack", of: "stop" });
    await vi.advanceTimersByTimeAsync(2_000);
    expect(interrupt).not.toHaveBeenCalled();
  });

  it("interrupts the kernel when a blocked one does not answer", async () => {
    const kernel = {
      interrupted: 0,
      interrupt() {
        this.interrupted += 1;
        return Promise.resolve();
      },
    };
    open({ kernel }).click();
    await vi.advanceTimersByTimeAsync(900);
    expect(kernel.interrupted).toBe(0);
    await vi.advanceTimersByTimeAsync(200);
    expect(kernel.interrupted).toBe(1);
    expect(note()).toBe("the kernel is busy: interrupting the cell");
  });

  it("never interrupts a kernel that does something else", async () => {
    const interrupt = vi.fn();
    open({ kernel: { interrupt } }, { blocking: false }).click();
    await vi.advanceTimersByTimeAsync(3_000);
    expect(interrupt).not.toHaveBeenCalled();
    expect(note()).toBe("waiting for the kernel; it may be busy");
  });

  it.each([undefined, null, {}, { kernel: null }, { kernel: { interrupt: "no" } }])(
    "names the kernel's own button where the front end has no interrupt (%j)",
    async (manager) => {
      open(manager).click();
      await vi.advanceTimersByTimeAsync(1_100);
      expect(note()).toBe("the kernel is busy: use the kernel's interrupt button");
    },
  );

  it("says the same when interrupting fails", async () => {
    open({ kernel: { interrupt: () => Promise.reject(new Error("gone")) } }).click();
    await vi.advanceTimersByTimeAsync(1_100);
    expect(note()).toBe("the kernel is busy: use the kernel's interrupt button");
  });

  it("can be tried again when nothing happened", async () => {
    const button = open();
    button.click();
    await vi.advanceTimersByTimeAsync(10_100);
    expect(button.disabled).toBe(false);
    expect(note()).toContain("try again");
    button.click();
    expect(stops()).toBe(2);
  });

  it("is disabled when the run cannot be stopped, gone when it is over", () => {
    const button = open(undefined, { stoppable: false });
    expect(button.disabled).toBe(true);
    button.click();
    expect(stops()).toBe(0);
    panel.say(delta(2, { run: run({ state: "stopped", stoppable: false }) }));
    expect(button.hidden).toBe(true);
  });

  it("is a real button with a name, so the keyboard reaches it", () => {
    const button = open();
    expect(button.tagName).toBe("BUTTON");
    expect(button.type).toBe("button");
    expect(button.getAttribute("aria-label")).toBe("Stop the run mnist");
    button.focus();
    expect(document.activeElement).toBe(button);
  });

  it("reports a broken connection", () => {
    vi.spyOn(console, "error").mockImplementation(() => undefined);
    const button = open();
    panel.model.send = () => {
      throw new Error("comm is closed");
    };
    button.click();
    panel.wait(100);
    expect(panel.text('[role="alert"]')).toContain("comm is closed");
    vi.restoreAllMocks();
  });
});
