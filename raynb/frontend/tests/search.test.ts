import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { decode } from "../src/decode";
import { PanelState } from "../src/model";
import { ACK_MS, RETRY_MS } from "../src/stop";
import { GOAL, goalAxis, paramAxes } from "../src/trial_axes";
import { lookOf, qualities } from "../src/trial_look";
import { brushText, TrialsShown } from "../src/trials_shown";
import type { Update } from "../src/wire";
import { delta, series, snapshot } from "./messages";
import { search, searchRun, trial } from "./search_messages";
import { curve, eightTrials, openSearch } from "./open_search";
import type { OpenPanel } from "./open_panel";

function stateOf(content: object, buffers: DataView[] = []): PanelState {
  const { message, problems } = decode(content, buffers);
  expect(problems).toEqual([]);
  const state = new PanelState(() => 1_065);
  state.apply(message as Update);
  return state;
}

describe("decoding", () => {
  it("reads a search and its trials", () => {
    const { content, buffers } = eightTrials();
    const state = stateOf(content, buffers);
    const found = state.run?.search;
    expect(found).toMatchObject({ metric: "val_accuracy", mode: "max", planned: 8, workers: 1 });
    expect(found?.best).toMatchObject({ trial: 1, value: 0.93, step: 3 });
    expect(found?.cluster.get("GPU")).toEqual({ used: 1.5, total: 2 });
    expect(state.trials.size).toBe(8);
    expect(state.trials.get(6)).toMatchObject({ state: "pending", best: null, iterations: null });
  });

  it("a delta changes only what it names", () => {
    const state = stateOf(snapshot({ run: searchRun(), trials: [trial(0)] }));
    const update = decode(delta(2, { trials: [{ trial: 0, state: "pruned", reason: "pruned by ASHA at iteration 4" }] }));
    state.apply(update.message as Update);
    expect(state.trials.get(0)).toMatchObject({ state: "pruned", latest: 0.5, node: "node-a" });
  });

  it("what is odd becomes unknown, and is said", () => {
    const odd = trial(2, { state: "flying", config: { lr: { a: 1 }, x: [1], none: null }, best: "high", last: 3, error: "no", iterations: null });
    const { message, problems } = decode(snapshot({ run: searchRun({}, search({ params: 3, counts: null, cluster: null, mode: "up", best_trial: { trial: "x" } })), trials: [odd, { trial: -1 }, 7] }));
    expect(problems).toEqual([
      'unknown state of trial 2: "flying"',
      'an entry of "trials" is not understood',
      'an entry of "trials" is not understood',
    ]);
    const update = message as Update;
    expect(update.run?.search).toMatchObject({ mode: null, params: [], best: null });
    expect(update.trials[0]).toMatchObject({ state: "unknown", best: null, error: null });
    expect([...(update.trials[0]?.config ?? [])]).toEqual([["none", null]]);
  });

  it("a run is no search", () => {
    const { message } = decode(snapshot());
    expect((message as Update).run?.search).toBeNull();
  });

  it("names of objects are only names", () => {
    const rows = [trial(0, { config: JSON.parse('{"__proto__": 1, "toString": 2}') as object })];
    const update = decode(snapshot({ run: searchRun(), trials: rows })).message as Update;
    expect(update.trials[0]?.config?.get("toString")).toBe(2);
    expect(update.trials[0]?.config?.get("constructor")).toBeUndefined();
  });
});

describe("axes", () => {
  const { content, buffers } = eightTrials();
  const state = stateOf(content, buffers);
  const found = state.run?.search;
  if (found == null) throw new Error("no search");
  const trials = [...state.trials.values()];
  const axes = paramAxes(found, trials);
  const axis = (key: string) => {
    const one = axes.find((candidate) => candidate.key === key);
    if (one === undefined) throw new Error(`no axis ${key}`);
    return one;
  };

  it("a parameter that varies has one, of its own kind", () => {
    expect(axes.map(({ key, scale }) => [key, scale.kind])).toEqual([
      ["lr", "log"],
      ["batch_size", "category"],
      ["model/dropout", "linear"],
      ["warmup_steps", "linear"],
      ["optimizer", "category"],
    ]);
  });

  it("coordinates are values or indexes", () => {
    const [one] = trials;
    if (one === undefined) throw new Error("no trial");
    expect(axis("lr").coordinate(one)).toBe(1e-4);
    expect(axis("optimizer").coordinate(one)).toBe(0);
    expect(axis("batch_size").text(axis("batch_size").coordinate(one) ?? -1)).toBe("32");
  });

  it("None is a category", () => {
    const choice = { name: "clip", kind: "choice", log: false, low: null, high: null, choices: [null, 1, 0.5], text: "" };
    const own = stateOf(snapshot({ run: searchRun({}, search({ params: [choice] })), trials: [trial(0, { config: { clip: null } })] }));
    const [clip] = paramAxes(own.run?.search ?? found, [...own.trials.values()]);
    expect(clip?.scale.ticks(9).map(({ label }) => label)).toEqual(["0.5", "1", "None"]);
    expect([...own.trials.values()].map((one) => clip?.coordinate(one))).toEqual([2]);
  });

  it("values outside of the domain widen it", () => {
    const rows = decode(snapshot({ run: searchRun(), trials: [trial(0, { config: { lr: 0.5 } })] })).message as Update;
    const own = new PanelState();
    own.apply(rows);
    const [lr] = paramAxes(found, [...own.trials.values()]);
    expect(lr?.scale.high).toBe(0.5);
  });

  it("the metric spans its best values, logarithmic where they span far", () => {
    expect(goalAxis(found, trials)?.scale.kind).toBe("linear");
    const far = trials.map((one, i) => ({ ...one, best: 10 ** i }));
    expect(goalAxis(found, far)?.scale.kind).toBe("log");
    expect(goalAxis(found, trials.map((one) => ({ ...one, best: null })))).toBeNull();
  });

  it("a range in words", () => {
    expect(brushText(axis("lr"), [1e-5, 1e-3])).toBe("1.00e−5 to 0.001");
    expect(brushText(axis("lr"), [Number.NEGATIVE_INFINITY, 1e-3])).toBe("up to 0.001");
    expect(brushText(axis("optimizer"), [-0.5, 1.2])).toBe("adam, adamw");
  });
});

describe("how trials look", () => {
  const rows = [0.1, 0.9, 0.5].map((best, i) => ({ ...trial(i), best, state: i === 2 ? "pruned" : "finished" })) as never[];

  it("the best has the strongest colour, by the mode", () => {
    expect([...qualities(rows, "max")]).toEqual([[0, 0], [2, 0.5], [1, 1]]);
    expect(qualities(rows, "min").get(0)).toBe(1);
  });

  it("pruned ones are fainter than any other", () => {
    const [worst, best, pruned] = rows.map((one, i) => lookOf(one, i === 1 ? 1 : 0, "light"));
    expect(pruned?.alpha).toBeLessThan(worst?.alpha ?? 0);
    expect(worst?.alpha).toBeLessThan(best?.alpha ?? 0);
    expect(pruned?.stroke).not.toBe(worst?.stroke);
  });
});

describe("which trials are shown", () => {
  const { content, buffers } = eightTrials();
  const state = stateOf(content, buffers);
  const shownBy = (act: (shown: TrialsShown) => void): number[] => {
    const shown = new TrialsShown();
    act(shown);
    return shown.scene(state)?.shown.map((one) => one.trial) ?? [];
  };

  it.each([
    ["", [0, 1, 2, 3, 4, 5, 6, 7]],
    ["1, 3-4", [1, 3, 4]],
    ["pruned, failed", [3, 4]],
    ["bad", [4]],
    ["lr<1e-4", [5]],
    ["batch_size=64", [1]],
    ["dropout>=0.2", [1]],
    ["optimizer=ADAMW", [1]],
    ["optimizer!=adam", [1, 5]],
    ["running best>0.65", [1, 2]],
    ["val_accuracy>0.9", [1]],
    ["nothing<1", []],
  ])("by words: %s", (words, wanted) => {
    expect(shownBy((shown) => (shown.filter = words))).toEqual(wanted);
  });

  it("by ranges, all of which must hold; who has no value is not within", () => {
    expect(shownBy((shown) => shown.brush("optimizer", [0.5, 2.5]))).toEqual([1, 5]);
    expect(
      shownBy((shown) => {
        shown.brush("optimizer", [0.5, 2.5]);
        shown.brush(GOAL, [0.9, Number.POSITIVE_INFINITY]);
      }),
    ).toEqual([1]);
    expect(shownBy((shown) => shown.brush(GOAL, [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY]))).not.toContain(6);
  });
});

describe("the panel of a search", () => {
  let panel: OpenPanel;
  beforeEach(() => {
    vi.useFakeTimers();
    panel = openSearch();
    const { content, buffers } = eightTrials();
    panel.say(content, buffers);
  });
  afterEach(() => {
    panel.close();
    vi.useRealTimers();
  });

  const names = (): string[] => panel.all(".rn-trials .rn-row .rn-c-rank").map((cell) => cell.textContent ?? "");
  const rowOf = (index: number): HTMLElement => {
    const row = panel.all(".rn-trials .rn-row").find((one) => one.querySelector(".rn-c-rank")?.textContent === String(index));
    if (row === undefined) throw new Error(`no row of trial ${index}`);
    return row;
  };
  const click = (node: Element | null | undefined): void => {
    node?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    panel.wait(300);
  };

  it("has the tabs of a search", () => {
    expect(panel.all(".rn-tab").map((tab) => tab.dataset["tab"])).toEqual(["overview", "parameters", "logs"]);
    expect(panel.root.getAttribute("aria-label")).toBe("Search");
  });

  it("always says what is best, how far it is and what it uses", () => {
    const glance = panel.text(".rn-search-view");
    expect(glance).toContain("Searching");
    expect(panel.text(".rn-best-card")).toMatch(/0\.93.*val_accuracy.*trial 1, iteration 3.*lr.*0\.001.*batch_size.*64/s);
    expect(glance).toContain("3 of 8 done");
    expect(glance).toContain("2 pending");
    expect(glance).toMatch(/CPU\s*3 of 4/);
    expect(glance).toMatch(/GPU\s*1\.5 of 2/);
    for (const tab of panel.all(".rn-tab")) {
      click(tab);
      expect(panel.get(".rn-best-card").closest("[hidden]")).toBeNull();
    }
  });

  it("lists the best first, unknown values last", () => {
    expect(names()).toEqual(["1", "0", "2", "5", "4", "3", "6", "7"]);
    expect(rowOf(1).className).toContain("rn-best-row");
    expect(rowOf(3).textContent).toContain("pruned by ASHA at iteration 4");
    expect(rowOf(4).textContent).toContain("ValueError: bad batch");
    expect(rowOf(6).querySelector(".rn-c-latest")?.textContent).toBe("n/a");
  });

  it("sorts by any column and filters", () => {
    click(panel.all(".rn-trials th").find((head) => head.textContent === "lr")?.querySelector("button"));
    expect(names()[0]).toBe("1");
    const box = panel.get<HTMLInputElement>(".rn-trial-filter");
    box.value = "running";
    box.dispatchEvent(new Event("input"));
    panel.wait(300);
    expect(names().sort()).toEqual(["1", "2", "5"]);
    expect(panel.text(".rn-trial-bar-view")).toContain("3 of 8 trials");
    box.value = "nowhere";
    box.dispatchEvent(new Event("input"));
    panel.wait(300);
    expect(panel.text(".rn-trials-view")).toContain("No trial matches");
  });

  it("a click selects a trial and shows all about it", () => {
    click(rowOf(4).querySelector(".rn-c-state"));
    const inspector = panel.get(".rn-inspector");
    expect(inspector.hidden).toBe(false);
    expect(inspector.textContent).toMatch(/trial 4.*failed.*ValueError: bad batch/s);
    expect(inspector.textContent).toContain("Cell In[2], line 9");
    expect(rowOf(4).className).toContain("rn-selected");
    click(inspector.querySelector(".rn-unpin"));
    expect(inspector.hidden).toBe(true);
  });

  it("the best trial is one click away", () => {
    click(panel.get(".rn-best-trial"));
    expect(panel.text(".rn-inspector-name")).toBe("trial 1");
  });

  it("the row under the pointer is marked", () => {
    rowOf(2).dispatchEvent(new Event("pointerenter"));
    panel.wait(300);
    expect(rowOf(2).className).toContain("rn-pointed");
    rowOf(2).dispatchEvent(new Event("pointerleave"));
    panel.wait(300);
    expect(rowOf(2).className).not.toContain("rn-pointed");
  });

  it("stops all after asking back", () => {
    const ask = panel.get(".rn-title .rn-ask");
    click(ask.querySelector(".rn-stop"));
    expect(ask.textContent).toContain("Stop 3 running trials");
    expect(panel.model.sent.some(({ kind }) => kind === "stop")).toBe(false);
    click([...ask.querySelectorAll("button")].find((one) => one.textContent === "no"));
    expect(panel.model.sent.some(({ kind }) => kind === "stop")).toBe(false);
    click(ask.querySelector(".rn-stop"));
    click(ask.querySelector(".rn-ask-yes"));
    expect(panel.model.sent.filter(({ kind }) => kind === "stop")).toHaveLength(1);
    expect(ask.textContent).toContain("stopping…");
  });

  it("stops one trial after asking back, and says what comes of it", () => {
    const stop = (): Element | null => rowOf(2).querySelector(".rn-actions .rn-stop");
    click(stop());
    expect(panel.text(".rn-inspector-name")).toBe("");
    click(rowOf(2).querySelector(".rn-ask-yes"));
    expect(panel.model.sent.at(-1)).toEqual({ kind: "stop_trial", trial: 2 });
    expect(stop()?.textContent).toBe("stopping");
    panel.wait(ACK_MS);
    expect(stop()?.textContent).toBe("no answer");
    panel.say({ kind: "ack", of: "stop_trial", trial: 2 });
    expect(stop()?.textContent).toBe("stopping");
    panel.say(delta(2, { trials: [{ trial: 2, state: "stopped", reason: "stopped on request" }] }));
    expect(rowOf(2).querySelector<HTMLElement>(".rn-ask")?.hidden).toBe(true);
    expect(rowOf(2).textContent).toContain("stopped on request");
  });

  it("a stop that nobody answers can be asked again, and never interrupts", () => {
    click(rowOf(2).querySelector(".rn-actions .rn-stop"));
    click(rowOf(2).querySelector(".rn-ask-yes"));
    panel.wait(RETRY_MS);
    expect(rowOf(2).querySelector(".rn-actions .rn-stop")?.textContent).toBe("stop");
    expect(panel.model.sent.filter(({ kind }) => kind !== "hello")).toEqual([{ kind: "stop_trial", trial: 2 }]);
  });

  it("opens a trial's log", () => {
    panel.say(delta(2, { logs: [{ rank: 2, seq: 1, stream: "out", text: "of two" }, { rank: 1, seq: 1, stream: "out", text: "of one" }] }));
    click(rowOf(2).querySelector(".rn-c-actions button.rn-quiet:last-child"));
    expect(panel.get(".rn-tab[data-tab=logs]").getAttribute("aria-selected")).toBe("true");
    expect(panel.get<HTMLSelectElement>(".rn-select").selectedOptions[0]?.textContent).toBe("trial 2");
    expect(panel.text(".rn-log")).toContain("of two");
    expect(panel.text(".rn-log")).not.toContain("of one");
    click([...panel.all(".rn-logs-view button")].find((one) => one.textContent === "download"));
    expect(panel.model.sent.at(-1)).toEqual({ kind: "download", rank: 2 });
  });

  it("a trial of several workers has a log a rank", () => {
    panel.say(
      snapshot({ seq: 2, run: searchRun({}, search({ workers: 2 })), trials: [trial(0), trial(1)], logs: [{ rank: 3, seq: 1, stream: "out", text: "x" }] }),
    );
    click(panel.get(".rn-tab[data-tab=logs]"));
    expect([...panel.get<HTMLSelectElement>(".rn-select").options].map(({ text }) => text)).toEqual(["all trials", "trial 1 rank 1"]);
    expect(panel.text(".rn-log-rank")).toBe("1·1");
  });

  it("draws parameters, with a chart of each", () => {
    click(panel.get(".rn-tab[data-tab=parameters]"));
    expect(panel.get(".rn-parallel").getAttribute("aria-label")).toContain("lr, batch_size, model/dropout, warmup_steps, optimizer, val_accuracy");
    expect(panel.all(".rn-scatters .rn-card-name").map((node) => node.textContent)).toEqual(["lr", "batch_size", "model/dropout", "warmup_steps", "optimizer"]);
  });

  it("a range on an axis filters everywhere and is a chip to take away", () => {
    click(panel.get(".rn-tab[data-tab=parameters]"));
    const plot = panel.get(".rn-parallel");
    const pointer = (type: string, clientX: number, clientY: number): void => {
      plot.dispatchEvent(new MouseEvent(type, { bubbles: true, clientX, clientY, button: 0 }));
      panel.wait(300);
    };
    // The metric's axis is the last: at the right, upwards from its middle.
    pointer("pointerdown", 640 - 62, 160);
    pointer("pointermove", 640 - 62, 34);
    pointer("pointerup", 640 - 62, 34);
    expect(panel.text(".rn-brush-chips")).toMatch(/^val_accuracy from 0\.66/);
    click(panel.get(".rn-tab[data-tab=overview]"));
    expect(names()).toEqual(["1", "0", "2"]);
    click(panel.get(".rn-brush-chip"));
    expect(names()).toHaveLength(8);
  });

  it("keys move a range as well", () => {
    click(panel.get(".rn-tab[data-tab=parameters]"));
    const press = (key: string, more: KeyboardEventInit = {}): void => {
      panel.get(".rn-parallel").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
      panel.wait(300);
    };
    press("ArrowRight");
    press("ArrowUp", { shiftKey: true });
    expect(panel.text(".rn-brush-chips")).toMatch(/^batch_size 32/);
    press("Delete");
    expect(panel.text(".rn-brush-chips")).toBe("");
  });

  it("goes on at once when a page that was hidden for long is seen again", () => {
    const frames: FrameRequestCallback[] = [];
    const real = globalThis.requestAnimationFrame;
    panel.model.emit(delta(2, { trials: [{ trial: 2, latest: 0.71 }] }));
    panel.wait(20);
    // As browsers do for a hidden page: frames wait, time goes on.
    globalThis.requestAnimationFrame = (callback) => frames.push(callback);
    panel.model.emit(delta(3, { trials: [{ trial: 2, latest: 0.72 }] }));
    panel.wait(600);
    for (const frame of frames.splice(0)) frame(performance.now());
    panel.wait(600_000);
    globalThis.requestAnimationFrame = real;
    for (const frame of frames.splice(0)) frame(performance.now());
    panel.model.emit(delta(4, { trials: [{ trial: 2, latest: 0.73 }] }));
    panel.wait(2_500);
    expect(rowOf(2).querySelector(".rn-c-latest")?.textContent).toBe("0.73");
  });

  it("500 trials make some dozens of rows", () => {
    const rows = Array.from({ length: 500 }, (_, i) => trial(i));
    const { series: entries, buffers } = series(...rows.map((_, i) => curve(i, [0.1, 0.2])));
    panel.say(snapshot({ seq: 2, run: searchRun(), trials: rows, series: entries }), buffers);
    panel.wait(600);
    expect(panel.text(".rn-trial-bar-view")).toContain("500 trials");
    expect(panel.all(".rn-trials .rn-row").length).toBeLessThan(60);
  });
});
