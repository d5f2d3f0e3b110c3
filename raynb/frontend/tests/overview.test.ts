import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { openPanel, type OpenPanel } from "./open_panel";
import {
  bands, bucket, delta, hint, run, series, shard, snapshot, worker, type BandBucket, type Bucket, type Part,
} from "./messages";

let panel: OpenPanel;
beforeEach(() => {
  vi.useFakeTimers();
  panel = openPanel();
});
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

function withSeries(...parts: Part[]): void {
  const { series: entries, buffers } = series(...parts);
  panel.say(snapshot({ series: entries, workers: [worker(0), worker(1)] }), buffers);
}

/** A thousand ranks: bands of two metrics, with rank 11 the worst. */
function withBands(over: object = {}, own: Part[] = []): void {
  const { series: entries, buffers } = series({ rank: 11, buckets: [bucket(1, 9), bucket(2, 8)] }, ...own);
  const across = (middle: number): BandBucket[] => [1, 2].map((step) => [step, step, step, middle, 0.1, 9, 1_000]);
  const bandEntries = bands(buffers, { metric: "loss", buckets: across(2) }, { metric: "acc", buckets: across(0.5) });
  panel.say(
    snapshot({
      run: run({ detail: "bands", world_size: 1_000 }),
      workers: Array.from({ length: 1_000 }, (_, rank) => worker(rank, { util: rank === 311 ? 12 : 90 })),
      series: entries,
      bands: bandEntries,
      focus: { pinned: [], worst: { loss: 11 } },
      ...over,
    }),
    buffers,
  );
  panel.wait(600);
}

const click = (node: Element | null | undefined, init: MouseEventInit = {}): void => {
  node?.dispatchEvent(new MouseEvent("click", { bubbles: true, ...init }));
  panel.wait(200);
};
const metric = (name: string): HTMLElement => {
  const found = panel.all(".rn-metric").find((node) => node.textContent === name);
  if (found === undefined) throw new Error(`no button for ${name}`);
  return found;
};
const charts = (): string[] => panel.all(".rn-card").map((node) => node.dataset["metric"] ?? "");
const chips = (): string[] => panel.all(".rn-chip").map((node) => node.textContent ?? "");
const off = (): string[] =>
  panel.all('.rn-chip[aria-pressed="false"]').map((node) => node.textContent ?? "");

describe("which metrics have a chart", () => {
  it("a word where there is none yet", () => {
    panel.say(snapshot());
    expect(panel.get(".rn-empty").hidden).toBe(false);
    expect(panel.get(".rn-charts").hidden).toBe(true);
  });

  it("the first loss and what is to be good, until the reader chooses", () => {
    withSeries(...["lr", "train_loss", "val_loss", "accuracy"].map((name) => ({ metric: name, buckets: [bucket(1, 1)] })));
    expect(charts()).toEqual(["train_loss", "accuracy"]);
    expect(panel.get(".rn-empty").hidden).toBe(true);
    expect(panel.all(".rn-plot canvas")).toHaveLength(2);
  });

  it("the run's own measure before a guess", () => {
    const { series: entries, buffers } = series(
      ...["loss", "accuracy", "f1"].map((name) => ({ metric: name, buckets: [bucket(1, 1)] })),
    );
    const best = { metric: "f1", value: 1, step: 1, rank: 0 };
    panel.say(snapshot({ run: run({ best }), series: entries }), buffers);
    expect(charts()).toEqual(["loss", "f1"]);
  });

  it("the first where no name tells, and no picker for one", () => {
    withSeries({ metric: "weight", buckets: [bucket(1, 1)] });
    expect(charts()).toEqual(["weight"]);
    expect(panel.get(".rn-picker").hidden).toBe(true);
    expect(panel.get(".rn-card-close").hidden).toBe(true);
  });

  it("the reader's choice: toggled, alone with alt, closed, and remembered", () => {
    withSeries(...["loss", "acc", "lr"].map((name) => ({ metric: name, buckets: [bucket(1, 1)] })));
    click(metric("lr"));
    expect(charts()).toEqual(["loss", "acc", "lr"]);
    expect(metric("lr").getAttribute("aria-pressed")).toBe("true");
    click(panel.all(".rn-card-close")[0]);
    expect(charts()).toEqual(["acc", "lr"]);
    click(metric("loss"), { altKey: true });
    expect(charts()).toEqual(["loss"]);
    click(metric("loss"));
    expect(charts(), "one stays").toEqual(["loss"]);
    panel.close();
    panel = openPanel();
    withSeries(...["loss", "acc"].map((name) => ({ metric: name, buckets: [bucket(1, 1)] })));
    expect(charts()).toEqual(["loss"]);
  });

  it("many can be searched", () => {
    withSeries(...Array.from({ length: 40 }, (_, i) => ({ metric: `layer${i}/norm`, buckets: [bucket(1, 1)] })));
    const search = panel.get<HTMLInputElement>(".rn-search");
    expect(search.hidden).toBe(false);
    search.value = "LAYER3";
    search.dispatchEvent(new Event("input"));
    expect(panel.all(".rn-metric").filter((node) => !node.hidden)).toHaveLength(11);
    search.value = "nothing like it";
    search.dispatchEvent(new Event("input"));
    expect(panel.all(".rn-metric").filter((node) => !node.hidden)).toEqual([]);
    expect(panel.text(".rn-metrics")).toContain("no such metric");
  });
});

describe("a chart", () => {
  it("says the newest values, NaN too", () => {
    withSeries({ rank: 0, buckets: [bucket(1, 2), bucket(2, 0.5)] }, { rank: 1, buckets: [bucket(1, 3), bucket(2, 0.75)] });
    expect(panel.text(".rn-card-newest")).toBe("0.5 to 0.75");
    withSeries({ buckets: [bucket(1, 2), bucket(2, Number.NaN)] });
    expect(panel.text(".rn-card-newest")).toBe("NaN");
    expect(panel.text(".rn-card > .rn-note")).toContain("rank 0 is not a finite number");
  });

  it("switches to a log axis and to time, and says what has no place there", () => {
    withSeries({ buckets: [bucket(1, 0), bucket(2, 1)] });
    const log = panel.all(".rn-toolbar .rn-toggle")[0];
    click(log);
    expect(log?.getAttribute("aria-pressed")).toBe("true");
    expect(panel.text(".rn-card > .rn-note")).toContain("log axis");
    click(panel.get('.rn-switch input[value="time"]'));
    expect(panel.get(".rn-plot").getAttribute("aria-label")).toContain("over time");
  });

  it("offers epochs only where they are known", () => {
    const [step, time, , ...values] = bucket(1, 1);
    withSeries({ buckets: [[step, time, Number.NaN, ...values] as unknown as Bucket] });
    const epoch = panel.get<HTMLInputElement>('.rn-switch input[value="epoch"]');
    expect(epoch.disabled).toBe(true);
    withSeries({ buckets: [bucket(50, 1), bucket(150, 2)] });
    expect(epoch.disabled).toBe(false);
    click(epoch);
    expect(panel.get(".rn-plot").getAttribute("aria-label")).toContain("over epoch");
  });

  it("shows all ranks' values under the pointer, the worst first, and reads the first aloud", () => {
    withSeries(...[3, 9, 5].map((value, rank) => ({ rank, buckets: [bucket(10, value), bucket(20, value)] })));
    const plot = panel.get(".rn-plot");
    const outside = vi.fn();
    document.body.addEventListener("keydown", outside);
    const press = (key: string): void => {
      plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      panel.wait(50);
    };
    press("ArrowRight");
    press("ArrowRight");
    const tip = panel.get(".rn-tooltip");
    expect(tip.hidden).toBe(false);
    expect(tip.textContent).toBe("step 20rank 19rank 25rank 03");
    expect(panel.text(".rn-aloud")).toBe("step 20: rank 1 9, rank 2 5, rank 0 3");
    press("Escape");
    expect(tip.hidden).toBe(true);
    expect(outside).not.toHaveBeenCalled();
    press("j");
    expect(outside).toHaveBeenCalledTimes(1);
    document.body.removeEventListener("keydown", outside);
    expect(plot.tabIndex).toBe(0);
  });

  it("bounds the values it shows at once", () => {
    withSeries(...Array.from({ length: 16 }, (_, rank) => ({ rank, buckets: [bucket(1, rank), bucket(2, rank)] })));
    panel.get(".rn-plot").dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
    panel.wait(50);
    expect(panel.all(".rn-tooltip-row")).toHaveLength(12);
    expect(panel.text(".rn-tooltip")).toMatch(/^step 2rank 1515.*and 4 ranks more$/);
  });

  it("smooths by the slider, and keeps the choice", () => {
    withSeries({ buckets: [bucket(1, 0), bucket(2, 10)] });
    const slider = panel.get<HTMLInputElement>(".rn-smooth input");
    expect(panel.text(".rn-smooth .rn-value")).toBe("off");
    slider.value = "0.5";
    slider.dispatchEvent(new Event("input"));
    panel.wait(200);
    expect(panel.text(".rn-smooth .rn-value")).toBe("0.50");
    panel.get(".rn-plot").dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
    panel.wait(50);
    expect(panel.text(".rn-tooltip-row .rn-value")).toBe("6.667  (raw 10)");
    expect(panel.text(".rn-card-newest"), "the newest is as it came").toBe("10");
  });
});

describe("the legend", () => {
  beforeEach(() => {
    withSeries(...[0, 1, 2].flatMap((rank) => ["loss", "acc"].map((name) => ({ metric: name, rank, buckets: [bucket(1, rank)] }))));
  });

  it("is one for all charts, with colours and dashes of their own", () => {
    expect(chips()).toEqual(["rank 0", "rank 1", "rank 2"]);
    const dashes = panel.all(".rn-chip line").map((line) => line.getAttribute("stroke-dasharray"));
    expect(new Set(dashes).size).toBe(3);
  });

  it("hides a line, isolates one by alt or double click, and shows all again", () => {
    const chip = (i: number): HTMLElement | undefined => panel.all(".rn-chip")[i];
    click(chip(1));
    expect(off()).toEqual(["rank 1"]);
    click(chip(1));
    expect(off()).toEqual([]);
    click(chip(2), { altKey: true });
    expect(off()).toEqual(["rank 0", "rank 1"]);
    click(chip(2), { altKey: true });
    expect(off(), "twice is all again").toEqual([]);
    chip(0)?.dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
    panel.wait(200);
    expect(off()).toEqual(["rank 1", "rank 2"]);
    click(panel.get(".rn-legend .rn-toggle"));
    expect(off()).toEqual([]);
  });

  it("a rank of few that is pinned asks the kernel for nothing it has not, but is remembered", () => {
    click(panel.all(".rn-tile")[1]);
    expect(panel.all(".rn-tile").map((tile) => tile.getAttribute("aria-pressed"))).toEqual(["false", "true"]);
    expect(panel.all(".rn-unpin").filter((node) => !node.hidden)).toHaveLength(1);
  });
});

describe("many ranks", () => {
  const pins = (): unknown[] => panel.model.sent.flatMap((message) => (message.kind === "pin" ? [message.ranks] : []));

  it("are a median, its band and the worst, by name", () => {
    withBands();
    expect(chips()).toEqual(["median, min to max", "worst rank"]);
    expect(panel.all(".rn-card-newest").map((node) => node.textContent)).toEqual([
      "median 2 · worst: rank 11 8",
      "median 0.5",
    ]);
    panel.get(".rn-plot").dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
    panel.wait(50);
    expect(panel.text(".rn-tooltip")).toBe("step 2largest9median2smallest0.1worst: rank 118");
  });

  it("any can be pinned by number: the kernel is asked, its line comes, and goes", () => {
    withBands();
    const input = panel.get<HTMLInputElement>(".rn-pin-rank");
    expect(input.max).toBe("999");
    input.value = "77";
    panel.get<HTMLFormElement>(".rn-pin-form").requestSubmit();
    expect(pins()).toEqual([[77]]);
    const { series: entries, buffers } = series({ rank: 77, buckets: [bucket(1, 3)] });
    panel.say(delta(2, { series: entries, focus: { pinned: [77], worst: { loss: 11 } } }), buffers);
    panel.wait(600);
    expect(chips()).toContain("rank 77");
    click(panel.all(".rn-unpin").find((node) => !node.hidden));
    expect(pins()).toEqual([[77], []]);
  });

  it("at most sixteen pins: the oldest leaves", () => {
    withBands();
    for (let rank = 0; rank < 17; rank++) {
      panel.get<HTMLInputElement>(".rn-pin-rank").value = String(rank);
      panel.get<HTMLFormElement>(".rn-pin-form").requestSubmit();
    }
    expect(pins().at(-1)).toEqual(Array.from({ length: 16 }, (_, i) => i + 1));
  });

  it("pins survive a kernel that forgot them, and come from one that knows", () => {
    withBands({ focus: { pinned: [5], worst: {} } });
    expect(pins(), "its pins are taken").toEqual([]);
    withBands({ seq: 2 });
    expect(pins(), "ours are told").toEqual([[5]]);
  });

  it("are cells in one picture, with the extreme in words", () => {
    withBands();
    expect(panel.get(".rn-tiles").hidden).toBe(true);
    expect(panel.text(".rn-cells-box .rn-note")).toBe("median 90 % · least: rank 311, 12 %");
    const canvas = panel.get("canvas.rn-cells");
    expect(canvas.getAttribute("aria-label")).toContain("device use of 1000 ranks, median 90 %");
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    expect(panel.text(".rn-cells-box .rn-readout")).toBe("rank 1: 90 % (click: pin)");
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
    expect(pins()).toEqual([[1]]);
    const select = panel.get<HTMLSelectElement>(".rn-cells-box select");
    select.value = "wait";
    select.dispatchEvent(new Event("change"));
    panel.wait(600);
    expect(panel.text(".rn-cells-box .rn-note")).toBe("median 10 %");
  });
});

describe("the vital signs", () => {
  const vitals = (): Record<string, string> =>
    Object.fromEntries(
      panel.all(".rn-vital").map((node) => [
        node.children[0]?.textContent ?? "",
        [...node.children].slice(1).filter((one) => !(one as HTMLElement).hidden).map((one) => one.textContent).filter(Boolean).join(" | "),
      ]),
    );

  it("say how busy, how fast, how split, who is slow, and how far", () => {
    panel.say(snapshot({
      workers: [
        worker(0, { util: 90, step_s: 0.2, sync_s: 0.12, wait_s: 0.02, report_s: 0 }),
        worker(1, { util: 30, step_s: 0.2, sync_s: 0.12, wait_s: 0.02, report_s: 0 }),
        worker(2, { util: 80, step_s: 0.2, sync_s: 0.04, wait_s: 0.02, report_s: 0, shards: [shard({ rows_total: 20_000 })] }),
      ],
    }));
    expect(vitals()).toEqual({
      "devices busy": "80 % | least: rank 1, 30 %",
      throughput: "3,168 rows/s | 8.25 steps/s a rank",
      "a step takes": "200 ms | compute 43 %data 10 %report 0 %peers 47 %",
      slowest: "rank 2 | 160 ms own work, 2.0× the median",
      "data of the epoch": "48 % seen | 20,000 to 30,000 rows each",
    });
  });

  it("say n/a for what is unknown, with the reason, never 0", () => {
    panel.say(snapshot({
      workers: [0, 1].map((rank) => worker(rank, {
        util: null, note: "no NVML here", rows_rate: null, rate: null, step_s: null, wait_s: null, sync_s: null,
        report_s: null, shards: [],
      })),
    }));
    expect(vitals()).toEqual({
      "devices busy": "n/a | ranks 0, 1: no NVML here",
      throughput: "n/a",
      "a step takes": "n/a | compute n/adata n/areport n/apeers n/a",
      slowest: "n/a",
      "data of the epoch": "n/a",
    });
    expect(panel.get(".rn-split").classList).toContain("rn-unknown-track");
    expect(panel.text(".rn-tile")).toBe("rank 0GPU n/an/adata n/a");
  });

  it("are of ranks that still train, or of all when none does", () => {
    panel.say(snapshot({ workers: [worker(0, { status: "failed", util: 1 }), worker(1, { util: 50 })] }));
    expect(vitals()["devices busy"]).toMatch(/^50 %/);
    panel.say(delta(2, { workers: [{ rank: 1, status: "stopped" }] }));
    expect(vitals()["devices busy"]).toMatch(/least: rank 0, 1 %/);
  });

  it("a tile says in words what its bars show, and marks a rank that does not run", () => {
    panel.say(snapshot({ workers: [worker(0), worker(1, { status: "failed", where: "Cell In[3], line 2: x = 1" })] }));
    const [well, failed] = panel.all(".rn-tile");
    expect(well?.getAttribute("aria-label")).toContain(
      "use 87 %, memory 12.1 / 139 GiB; step 121 ms: compute 64 % · data 10 % · report 1 % · peers 25 %; data 12,800 / 30,000 rows",
    );
    expect(failed?.textContent).toContain("failed");
    expect(failed?.title).toContain("stands at Cell In[3], line 2");
  });
});

describe("the banner", () => {
  it("shows the gravest hint that holds, with the way to all", () => {
    panel.say(snapshot({ hints: [hint({ level: "info", title: "by the way" })] }));
    expect(panel.get(".rn-banner-view").hidden).toBe(true);
    panel.say(delta(2, { hints: [hint({ title: "slow data" }), hint({ id: "b", level: "error", title: "NaN" })] }));
    expect(panel.text(".rn-banner")).toBe("problemNaNwhat to do (and 1 more)");
    click(panel.get(".rn-banner button"));
    expect(panel.get('[role="tabpanel"][data-tab="hints"]').hidden).toBe(false);
    panel.get<HTMLButtonElement>('.rn-tab[data-tab="overview"]').click();
    panel.say(delta(3, { hints: [hint({ until: 1_060 })] }));
    expect(panel.get(".rn-banner-view").hidden).toBe(true);
  });
});
