import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { openPanel, type OpenPanel } from "./open_panel";
import { delta, event, hint, log, run, shard, snapshot, worker } from "./messages";
import { RUN_STATES } from "../src/wire";

let panel: OpenPanel;
beforeEach(() => {
  vi.useFakeTimers();
  panel = openPanel();
});
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

describe("opening", () => {
  it("asks to be kept where the record did not take its place", () => {
    const kept = () => panel.model.sent.filter((message) => message.kind === "keep").length;
    panel.model.emit({ kind: "ack", of: "stop" });
    panel.wait(2_000);
    expect(kept()).toBe(0);
    panel.model.emit({ kind: "ack", of: "end" });
    panel.wait(1_000);
    expect(kept()).toBe(0); // the record may be on its way
    panel.wait(1_000);
    expect(kept()).toBe(1);
  });

  it("asks for nothing once the record has taken its place", () => {
    panel.model.emit({ kind: "ack", of: "end" });
    panel.close();
    panel.wait(5_000);
    expect(panel.model.sent.filter((message) => message.kind === "keep")).toEqual([]);
  });

  it("says hello and is never blank", () => {
    expect(panel.model.sent).toEqual([{ kind: "hello" }]);
    expect(panel.text()).toContain("connecting to the kernel");
  });

  it("says after three seconds that it waits, and stops saying it on a snapshot", () => {
    panel.wait(3_000);
    expect(panel.text(".rn-notice")).toBe("waiting for the kernel; it may be busy");
    panel.say(snapshot());
    expect(panel.get(".rn-notice").hidden).toBe(true);
  });

  it("shows what arrives before the snapshot", () => {
    panel.say(delta(5, { run: run({ name: "early" }) }));
    expect(panel.text(".rn-name")).toBe("early");
    expect(panel.get(".rn-notice").hidden).toBe(false);
  });

  it("asks again after a hole, but not for each message", () => {
    panel.say(snapshot({ seq: 1 }));
    panel.wait(5_000);
    for (let seq = 3; seq < 20; seq++) panel.say(delta(seq));
    expect(panel.model.sent.filter((message) => message.kind === "hello")).toHaveLength(2);
  });

  it("leaves nothing behind when it closes", () => {
    panel.say(snapshot());
    panel.close();
    expect(panel.el.childElementCount).toBe(0);
    expect(panel.model.callbacks.size).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
  });
});

describe("header", () => {
  it.each(RUN_STATES)("shows the state %s with an icon and words", (state) => {
    panel.say(snapshot({ run: run({ state }) }));
    const badge = panel.get(".rn-header-view .rn-badge");
    expect(badge.querySelector("svg")).not.toBeNull();
    expect(badge.textContent?.length).toBeGreaterThan(4);
    expect(badge.closest('[role="status"]')?.getAttribute("aria-live")).toBe("polite");
  });

  it("shows a state it does not know, and says so", () => {
    panel.say(snapshot({ run: { ...run(), state: "dancing" } }));
    expect(panel.text(".rn-header-view .rn-badge")).toBe("Unknown state");
    expect(panel.text('[role="alert"]')).toContain('unknown run state: "dancing"');
  });

  it("counts the time by the kernel's clock", () => {
    panel.say(snapshot({ run: run({ started: 1_000, now: 1_065 }) }));
    expect(panel.text(".rn-meta")).toContain("elapsed1:05");
    panel.wait(4_900);
    expect(panel.text(".rn-meta")).toContain("elapsed1:09");
    panel.say(delta(2, { run: run({ started: 1_000, ended: 1_100, now: 1_200, state: "finished" }) }));
    expect(panel.text(".rn-meta")).toContain("elapsed1:40");
  });

  it("shows unknown values as n/a", () => {
    panel.say(snapshot({ run: run({ started: null, world_size: null, storage: null }) }));
    expect(panel.text(".rn-meta")).toMatch(/elapsedn\/a.*workersn\/a.*storagen\/a/);
  });

  it("shows restarts, the best value and what was dropped only when there are any", () => {
    panel.say(snapshot());
    for (const word of ["restarts", "best", "dropped"]) {
      const shown = panel.all(".rn-meta > :not([hidden])").map((node) => node.textContent).join();
      expect(shown).not.toContain(word);
    }
    panel.say(delta(2, {
      run: run({
        attempt: 2,
        best: { metric: "acc", value: 0.9812, step: 1_200, rank: 1 },
        dropped: { metrics: 0, samples: 3, logs: 1_412, series: 2, refused: 7 },
      }),
    }));
    const shown = panel.all(".rn-meta > :not([hidden])").map((node) => node.textContent).join();
    expect(shown).toContain("restarts2");
    expect(shown).toContain("acc 0.9812 at step 1,200, rank 1");
    expect(shown).toContain("dropped: 3 samples, 1,412 log lines, 2 series, 7 refused pieces of messages");
  });
});

describe("totals", () => {
  it("are in the header whichever tab is open: the furthest step, and rows of all ranks", () => {
    panel.say(snapshot({ workers: [worker(0, { step: 7, rows_rate: 100 }), worker(1, { step: 9, rows_rate: null })] }));
    expect(panel.text(".rn-meta")).toMatch(/step9.*data100 rows\/s/);
    panel.get<HTMLButtonElement>('[data-tab="hints"]').click();
    panel.say(delta(2, { workers: [{ rank: 1, step: 12, rows_rate: 50 }] }));
    expect(panel.text(".rn-meta")).toMatch(/step12.*data150 rows\/s/);
  });
});

describe("error", () => {
  it("shows rank, title, line and text, and goes when the run restarts", () => {
    panel.say(snapshot({
      run: run({
        state: "failed",
        error: { title: "ValueError: no", rank: 1, text: "Traceback\n\x1b[31mValueError\x1b[0m: no", line: "loss.backward()" },
      }),
    }));
    const box = panel.get(".rn-error-view");
    expect(box.hidden).toBe(false);
    expect(panel.text(".rn-error-head")).toBe("rank 1ValueError: no");
    expect(panel.text(".rn-error-line")).toBe("loss.backward()");
    expect(panel.text(".rn-error-text")).toBe("Traceback\nValueError: no");
    expect(box.querySelector(".ansi-fg-1")?.textContent).toBe("ValueError");
    panel.say(delta(2, { run: run({ state: "restarting" }) }));
    expect(box.hidden).toBe(true);
  });
});

describe("events", () => {
  it("are folded, with the newest in the summary", () => {
    panel.say(snapshot({ events: [event("started", { t: 1_000 }), event("slow", { t: 1_075, level: "warn" })] }));
    expect(panel.get<HTMLDetailsElement>(".rn-events-view details").open).toBe(false);
    expect(panel.text("summary")).toBe("Events (2): slow");
    expect(panel.all(".rn-event").map((row) => row.textContent)).toEqual(["0 sinfostarted", "1:15warningslow"]);
    expect(panel.all(".rn-event svg")).toHaveLength(2);
    panel.say(delta(2, { events: [event("failed", { t: 1_080, level: "error" })] }));
    expect(panel.all(".rn-event")).toHaveLength(3);
  });
});

describe("problems", () => {
  it("shows a message it cannot read and goes on", () => {
    panel.say("nonsense");
    expect(panel.text('[role="alert"]')).toContain("where a message belongs");
    panel.say(snapshot());
    expect(panel.text(".rn-name")).toBe("mnist");
  });

  it("shows which versions do not fit", () => {
    panel.say({ ...snapshot(), v: 9 });
    expect(panel.text('[role="alert"]')).toContain("restart the kernel");
  });

  it("a view that fails does not take the others along", () => {
    vi.spyOn(console, "error").mockImplementation(() => undefined);
    panel.get(".rn-events").append = () => {
      throw new Error("broken view");
    };
    panel.say(snapshot({ events: [event("one")], workers: [worker(0)] }));
    expect(panel.text('[role="alert"]')).toContain("the panel's events failed: broken view");
    expect(panel.all(".rn-tile")).toHaveLength(1);
    vi.restoreAllMocks();
  });
});

describe("theme", () => {
  it("follows JupyterLab's, also when it changes", async () => {
    expect(panel.root.dataset["theme"]).toBe("light");
    document.body.setAttribute("data-jp-theme-light", "false");
    await vi.advanceTimersByTimeAsync(50);
    expect(panel.root.dataset["theme"]).toBe("dark");
  });
});

describe("tabs", () => {
  const tab = (name: string): HTMLElement => panel.get(`.rn-tab[data-tab="${name}"]`);
  const open = (): string[] =>
    panel.all('[role="tabpanel"]').filter((node) => !node.hidden).map((node) => node.dataset["tab"] ?? "");
  const press = (key: string): void => {
    document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    panel.wait(50);
  };

  it("show one view at a time, each named by its tab", () => {
    expect(panel.all('[role="tab"]').map((node) => node.textContent)).toEqual(["Overview", "Workers", "Data", "Logs", "Hints"]);
    expect(open()).toEqual(["overview"]);
    tab("logs").click();
    expect(open()).toEqual(["logs"]);
    for (const node of panel.all('[role="tabpanel"]')) {
      const button = document.getElementById(node.getAttribute("aria-labelledby") ?? "");
      expect(button?.getAttribute("aria-controls")).toBe(node.id);
      expect(button?.getAttribute("aria-selected")).toBe(String(!node.hidden));
    }
  });

  it("are one stop of the Tab key, with arrows in between that do not reach the notebook", () => {
    const outside = vi.fn();
    document.body.addEventListener("keydown", outside);
    expect(panel.all('[role="tab"]').filter((node) => node.tabIndex === 0)).toEqual([tab("overview")]);
    tab("overview").focus();
    press("ArrowRight");
    expect(document.activeElement).toBe(tab("workers"));
    expect(open()).toEqual(["workers"]);
    press("ArrowLeft");
    press("ArrowLeft");
    expect(open()).toEqual(["hints"]);
    press("Home");
    expect(open()).toEqual(["overview"]);
    press("End");
    expect(open()).toEqual(["hints"]);
    expect(outside).not.toHaveBeenCalled();
    document.body.removeEventListener("keydown", outside);
  });

  it("remember the choice when the view is made again", () => {
    tab("data").click();
    panel.close();
    panel = openPanel();
    expect(open()).toEqual(["data"]);
  });

  it.each(["nonsense", '{"tab": "nowhere", "metrics": 5, "smooth": "much"}', "[]", "null"])(
    "survive a memory of %s", (kept) => {
      panel.close();
      sessionStorage.setItem("raynb.panel:mnist", kept);
      panel = openPanel();
      expect(open()).toEqual(["overview"]);
    },
  );

  it("count new error lines until they are looked at, once each", () => {
    const logs = [log(0, 1, "fine"), log(0, 2, "bad", "err"), log(1, 1, "worse", "err")];
    panel.say(snapshot({ logs }));
    expect(tab("logs").getAttribute("aria-label")).toBe("Logs, 2 new error lines");
    panel.say(snapshot({ seq: 2, logs }));
    panel.say(delta(3, { logs: [log(0, 2, "bad, again", "err")] }));
    expect(tab("logs").textContent).toBe("Logs2");
    tab("logs").click();
    panel.wait(50);
    expect(tab("logs").getAttribute("aria-label")).toBe("Logs");
    tab("overview").click();
    panel.say(delta(4, { logs: [log(0, 3, "new", "err")] }));
    expect(tab("logs").getAttribute("aria-label")).toBe("Logs, 1 new error line");
  });

  it("count the hints that still hold", () => {
    panel.say(snapshot({ hints: [hint(), hint({ id: "b", level: "info" }), hint({ id: "c", until: 1_050 })] }));
    expect(tab("hints").getAttribute("aria-label")).toBe("Hints, 2 hints");
    panel.say(delta(2, { hints: [] }));
    expect(tab("hints").getAttribute("aria-label")).toBe("Hints");
  });
});

describe("downloads", () => {
  it("become a file of the browser's, whatever name the kernel says", () => {
    const saved: { name: string; href: string }[] = [];
    const make = vi.spyOn(URL, "createObjectURL").mockReturnValue("blob:log");
    vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(function (this: HTMLAnchorElement) {
      saved.push({ name: this.download, href: this.href });
    });
    panel.say(
      { v: 2, kind: "file", rank: 3, name: "../../rank-00003.log", whole: false, note: "cut" },
      [new DataView(new Uint8Array([0, 104, 105]).buffer, 1)],
    );
    expect(saved).toEqual([{ name: "-..-rank-00003.log", href: "blob:log" }]);
    const blob = make.mock.calls[0]?.[0] as Blob;
    expect([blob.size, blob.type]).toEqual([2, "application/octet-stream"]);
    expect(panel.el.querySelector("a")).toBeNull();
    vi.restoreAllMocks();
  });
});

describe("redrawing", () => {
  const step = (): string | undefined => panel.all(".rn-tile .rn-sub")[0]?.textContent ?? undefined;
  const seen = (rows: number): object => ({ workers: [{ rank: 0, shards: [shard({ rows_seen: rows })] }] });

  it("draws the overview at most twenty times a second, twice past 64 ranks", () => {
    const draws = (worlds: number): number => {
      panel.say(snapshot({ seq: 1, run: run({ world_size: worlds }), workers: [worker(0)] }));
      panel.wait(1_000);
      let count = 0;
      let before = step();
      for (let i = 0; i < 100; i++) {
        panel.model.emit(delta(i + 2, seen(i + 5)));
        panel.wait(10);
        if (step() !== before) count += 1;
        before = step();
      }
      panel.wait(1_000);
      expect(step()).toContain("104 /");
      return count;
    };
    expect(draws(2)).toBeLessThanOrEqual(21);
    expect(draws(100)).toBeLessThanOrEqual(3);
  });

  it("leaves hidden tabs alone, and draws what they missed when they open", () => {
    panel.say(snapshot({ workers: [worker(0, { shards: [shard({ rows_seen: 1 })] })] }));
    panel.get<HTMLButtonElement>('.rn-tab[data-tab="logs"]').click();
    panel.wait(500);
    panel.say(delta(2, seen(2)));
    panel.wait(1_000);
    expect(step()).toContain("1 /");
    panel.get<HTMLButtonElement>('.rn-tab[data-tab="overview"]').click();
    panel.wait(50);
    expect(step()).toContain("2 /");
  });
});
