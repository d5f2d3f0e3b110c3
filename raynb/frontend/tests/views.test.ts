import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { openPanel, type OpenPanel } from "./open_panel";
import { bucket, delta, event, log, run, series, snapshot, worker } from "./messages";
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

function withSeries(...parts: Parameters<typeof series>): void {
  const { series: entries, buffers } = series(...parts);
  panel.say(snapshot({ series: entries, workers: [worker(0), worker(1)] }), buffers);
}

describe("opening", () => {
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
        dropped: { metrics: 0, samples: 3, logs: 1_412 },
      }),
    }));
    const shown = panel.all(".rn-meta > :not([hidden])").map((node) => node.textContent).join();
    expect(shown).toContain("restarts2");
    expect(shown).toContain("acc 0.9812 at step 1,200, rank 1");
    expect(shown).toContain("dropped: 3 samples, 1,412 log lines");
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

describe("chart", () => {
  it("starts empty with a word, then shows the first loss", () => {
    panel.say(snapshot());
    expect(panel.get(".rn-empty").hidden).toBe(false);
    withSeries(
      { metric: "lr", buckets: [bucket(1, 0.1)] },
      { metric: "train_loss", buckets: [bucket(1, 2)] },
      { metric: "val_loss", buckets: [bucket(1, 3)] },
    );
    expect(panel.get(".rn-empty").hidden).toBe(true);
    const select = panel.get<HTMLSelectElement>(".rn-chart-view select");
    expect(select.value).toBe("train_loss");
    expect([...select.options].map((option) => option.value)).toEqual(["lr", "train_loss", "val_loss"]);
    expect(panel.get(".rn-plot").querySelector("canvas")).not.toBeNull();
  });

  it("takes the first metric where none is a loss", () => {
    withSeries({ metric: "acc", buckets: [bucket(1, 0.1)] }, { metric: "lr", buckets: [bucket(1, 1)] });
    expect(panel.get<HTMLSelectElement>(".rn-chart-view select").value).toBe("acc");
  });

  it("keeps the reader's choice and shows it in the workers table too", () => {
    withSeries({ metric: "loss", buckets: [bucket(1, 2)] }, { metric: "acc", buckets: [bucket(1, 0.75)] });
    const select = panel.get<HTMLSelectElement>(".rn-chart-view select");
    select.value = "acc";
    select.dispatchEvent(new Event("change"));
    panel.wait(200);
    expect(panel.text("th.rn-c-metric")).toBe("acc");
    expect(panel.text("td.rn-c-metric")).toBe("0.75");
    const { series: entries, buffers } = series({ metric: "loss", start: 1, buckets: [bucket(2, 1)] });
    panel.say(delta(2, { series: entries }), buffers);
    expect(select.value).toBe("acc");
  });

  it("has a legend of buttons that hide and show lines", () => {
    withSeries({ rank: 0, buckets: [bucket(1, 2)] }, { rank: 1, buckets: [bucket(1, 3)] });
    const chips = panel.all(".rn-chip") as HTMLButtonElement[];
    expect(chips.map((chip) => chip.textContent)).toEqual(["rank 02", "rank 13"]);
    const dashes = chips.map((chip) => chip.querySelector("line")?.getAttribute("stroke-dasharray"));
    expect(new Set(dashes).size).toBe(2);
    chips[1]?.focus();
    expect(document.activeElement).toBe(chips[1]);
    chips[1]?.click();
    expect(chips[1]?.getAttribute("aria-pressed")).toBe("false");
    expect(chips[0]?.getAttribute("aria-pressed")).toBe("true");
    chips[1]?.click();
    expect(chips[1]?.getAttribute("aria-pressed")).toBe("true");
  });

  it("says NaN rather than hiding it", () => {
    withSeries({ buckets: [bucket(1, 2), bucket(2, Number.NaN)] });
    expect(panel.text(".rn-chip")).toBe("rank 0NaN");
    expect(panel.text("td.rn-c-metric")).toBe("NaN");
    expect(panel.text(".rn-chart-view .rn-note")).toContain("rank 0 is not a finite number");
  });

  it("switches to a log axis and to time", () => {
    withSeries({ buckets: [bucket(1, 0), bucket(2, 1)] });
    const log = panel.all(".rn-chart-view .rn-toggle")[0] as HTMLButtonElement;
    log.click();
    expect(log.getAttribute("aria-pressed")).toBe("true");
    expect(panel.text(".rn-chart-view .rn-note")).toContain("log axis");
    const time = panel.get<HTMLInputElement>('.rn-switch input[value="time"]');
    time.click();
    expect(panel.get(".rn-plot").getAttribute("aria-label")).toContain("over time");
  });

  it("reads values by arrow keys, which do not reach the notebook", () => {
    withSeries({ buckets: [bucket(10, 5), bucket(20, 4), bucket(30, 3)] });
    const plot = panel.get(".rn-plot");
    const outside = vi.fn();
    document.body.addEventListener("keydown", outside);
    const press = (key: string): void => {
      plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      panel.wait(50);
    };
    press("ArrowRight");
    press("Escape");
    expect(outside).not.toHaveBeenCalled();
    press("j");
    expect(outside).toHaveBeenCalledTimes(1);
    document.body.removeEventListener("keydown", outside);
    expect(plot.tabIndex).toBe(0);
  });

  it("summarises past sixteen ranks and lets the reader pin one", () => {
    withSeries(...Array.from({ length: 20 }, (_, rank) => ({ rank, buckets: [bucket(1, rank)] })));
    expect(panel.all(".rn-chip").map((chip) => chip.textContent)).toEqual([
      "median of 20 ranks, min to max9.5",
      "worst: rank 1919",
    ]);
    const pin = panel.get<HTMLSelectElement>('select[aria-label^="Pin"]');
    expect(pin.hidden).toBe(false);
    pin.value = "4";
    pin.dispatchEvent(new Event("change"));
    expect(panel.all(".rn-chip").map((chip) => chip.textContent)).toContain("rank 44");
    expect(pin.value).toBe("");
    pin.value = "4";
    pin.dispatchEvent(new Event("change"));
    expect(panel.all(".rn-chip")).toHaveLength(2);
  });
});

describe("workers", () => {
  it("shows every value of a row in words", () => {
    withSeries({ buckets: [bucket(1, 0.5)] });
    const row = panel.all(".rn-workers tbody tr")[0];
    expect(row?.querySelector(".rn-c-status svg")).not.toBeNull();
    const text = row?.textContent ?? "";
    for (const part of [
      "running", "GPU 0 · NVIDIA H200", "node-a", "GPU 87 %", "12.1 / 139 GiB", "1,240", "8.3 steps/s",
      "rows 12,800 / 30,000", "batches 100 / 235 · epoch 1", "0.5",
    ]) expect(text).toContain(part);
    expect(row?.querySelector("progress")?.value).toBeCloseTo(12_800 / 30_000);
  });

  it("shows n/a for what is unknown, with the reason, and no bar", () => {
    panel.say(snapshot({
      workers: [worker(0, {
        device: "CPU", device_kind: "CPU", util: null, mem_used: null, mem_total: null, note: "no psutil here",
        node: null, ip: null, step: null, rate: null, shard: null,
      })],
    }));
    const row = panel.get(".rn-workers tbody tr");
    expect(row.textContent).toContain("CPU n/a");
    expect(row.textContent).not.toMatch(/(^|[^\d])0 ?(%|B|steps)/);
    expect(panel.get(".rn-c-use + td").textContent).toBe("n/an/a steps/s");
    expect(panel.get("td.rn-c-use").title).toBe("no psutil here");
    expect(panel.get("progress").hidden).toBe(true);
  });

  it("shows an open-ended shard without a share", () => {
    const shard = { ...worker(0).shard, rows_total: null, batches_total: null, epoch: null } as NonNullable<ReturnType<typeof worker>["shard"]>;
    panel.say(snapshot({ workers: [worker(0, { shard })] }));
    expect(panel.get("progress").hasAttribute("value")).toBe(false);
    expect(panel.text(".rn-shard")).toBe("rows 12,800 / n/abatches 100 / n/a");
  });

  it("updates only the row that changed, and keeps rows in order of rank", () => {
    panel.say(snapshot({ workers: [worker(2), worker(0)] }));
    const first = panel.get(".rn-workers tbody tr");
    panel.say(delta(2, { workers: [worker(1, { status: "failed" })] }));
    expect(panel.all(".rn-workers tbody th").map((head) => head.textContent)).toEqual(["0", "1", "2"]);
    expect(panel.get(".rn-workers tbody tr")).toBe(first);
    expect(panel.text(".rn-workers tbody tr:nth-child(2) .rn-badge")).toBe("failed");
  });

  it("adds up the shard over all ranks", () => {
    panel.say(snapshot({ workers: [worker(0), worker(1)] }));
    expect(panel.text(".rn-shard-totals")).toBe("train: 25,600 of 60,000 rows this epoch over 2 ranks");
    const shard = { ...worker(1).shard, rows_seen: null } as NonNullable<ReturnType<typeof worker>["shard"]>;
    panel.say(delta(2, { run: run({ shard_totals: {} }), workers: [worker(1, { shard })] }));
    expect(panel.text(".rn-shard-totals")).toBe("train: n/a of 60,000 rows this epoch over 2 ranks");
  });
});

describe("logs", () => {
  const lines = (): string[] => panel.all(".rn-log-line").map((line) => line.textContent ?? "");

  beforeEach(() => {
    panel.say(snapshot({
      workers: [worker(0), worker(1)],
      logs: [log(0, 1, "zero"), log(1, 1, "\x1b[31mone\x1b[0m", "err")],
      logs_dropped: { 1: 12 },
    }));
  });

  it("shows all ranks with their number, or one without", () => {
    expect(lines()).toEqual(["0zero", "1one"]);
    expect(panel.get(".rn-log-line.rn-err .ansi-fg-1").textContent).toBe("one");
    const select = panel.get<HTMLSelectElement>(".rn-logs-view select");
    select.value = "1";
    select.dispatchEvent(new Event("change"));
    expect(lines()).toEqual(["one"]);
    expect(panel.text(".rn-logs-view .rn-readout")).toBe("last 1 line · 12 dropped");
  });

  it("replaces a progress line in place", () => {
    const node = panel.get(".rn-log-line");
    panel.say(delta(2, { logs: [log(0, 1, "zero, 50 %"), log(0, 2, "two")] }));
    expect(lines()).toEqual(["0zero, 50 %", "1one", "0two"]);
    expect(panel.get(".rn-log-line")).toBe(node);
  });

  it("holds still while paused and catches up after", () => {
    const pause = panel.all(".rn-logs-view button").find((one) => one.textContent === "pause");
    pause?.click();
    panel.say(delta(2, { logs: [log(0, 2, "later")] }));
    expect(lines()).toHaveLength(2);
    expect(panel.text(".rn-logs-view .rn-readout")).toBe("paused");
    pause?.click();
    expect(lines()).toHaveLength(3);
  });

  it("drops the oldest lines", () => {
    panel.say(delta(2, { logs: Array.from({ length: 600 }, (_, i) => log(0, i + 2, `${i}`)) }));
    expect(lines()).toHaveLength(500);
    expect(lines().at(-1)).toBe("0599");
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
    panel.get(".rn-workers tbody").insertBefore = () => {
      throw new Error("broken view");
    };
    panel.say(snapshot({ workers: [worker(0)], logs: [log(0, 1, "still here")] }));
    expect(panel.text('[role="alert"]')).toContain("the panel's workers failed: broken view");
    expect(panel.text(".rn-log")).toContain("still here");
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

describe("redrawing", () => {
  it("draws the table at most ten times a second, twice past 64 ranks", () => {
    const draws = (worlds: number): number => {
      panel.say(snapshot({ seq: 1, run: run({ world_size: worlds }), workers: [worker(0)] }));
      panel.wait(1_000);
      let count = 0;
      let before = panel.text("td.rn-c-step");
      for (let i = 0; i < 100; i++) {
        panel.model.emit(delta(i + 2, { workers: [worker(0, { step: i + 5 })] }));
        panel.wait(10);
        const now = panel.text("td.rn-c-step");
        if (now !== before) count += 1;
        before = now;
      }
      panel.wait(1_000);
      expect(panel.text("td.rn-c-step")).toContain("104");
      return count;
    };
    expect(draws(2)).toBeLessThanOrEqual(11);
    expect(draws(100)).toBeLessThanOrEqual(3);
  });
});
