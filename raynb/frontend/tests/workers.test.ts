import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { delta, run, shard, snapshot, worker } from "./messages";
import { openPanel, type OpenPanel } from "./open_panel";
import { parseFilter } from "../src/row_filter";
import { median, rankRuns, total } from "../src/stats";
import type { Worker } from "../src/wire";

const EVIL = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>';

let panel: OpenPanel;
beforeEach(() => {
  vi.useFakeTimers();
  panel = openPanel();
  open();
});
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

function open(): void {
  panel.get<HTMLButtonElement>('[data-tab="workers"]').click();
  panel.wait(600);
}

/** With the time that 64 ranks and more are drawn at. */
function say(content: object): void {
  panel.say(content);
  panel.wait(600);
}

function many(count: number, over: (rank: number) => Partial<Worker> = () => ({})): Worker[] {
  return Array.from({ length: count }, (_, rank) => worker(rank, over(rank)));
}

const VIEW = ".rn-workers-view";
const rows = (): HTMLElement[] => panel.all(`${VIEW} > .rn-table-scroll .rn-row`);
const ranks = (): string[] => rows().map((row) => row.querySelector(".rn-c-rank")?.textContent ?? "");
const cell = (row: number, key: string): HTMLElement => {
  const found = rows()[row]?.querySelector<HTMLElement>(`.rn-c-${key}`);
  if (found == null) throw new Error(`no cell ${key}`);
  return found;
};
const head = (key: string): HTMLElement => panel.get(`${VIEW} > .rn-table-scroll th.rn-c-${key}`);
const sortBy = (key: string): void => head(key).querySelector("button")?.click();
function filter(text: string): void {
  const input = panel.get<HTMLInputElement>(`${VIEW} .rn-input`);
  input.value = text;
  input.dispatchEvent(new Event("input"));
}

describe("workers", () => {
  it("shows every value of a rank", () => {
    say(snapshot({ workers: [worker(0), worker(1)] }));
    const text = (key: string): string => cell(0, key).textContent ?? "";
    expect({
      status: text("status"), device: text("device"), util: text("util"), memory: text("memory"),
      temperature: text("temperature"), power: text("power"), cpu: text("cpu"), rss: text("rss"), step: text("step"),
      rate: text("rate"), split: text("split"), rows: text("rows"), reports: text("reports"), age: text("age"),
      node: text("node"), pid: text("pid"),
    }).toEqual({
      status: "running", device: "GPU 0 · NVIDIA H200", util: "87 %", memory: "12.1 / 139 GiB",
      temperature: "61", power: "512", cpu: "104 %", rss: "3.5 GiB", step: "1,240",
      rate: "8.25", split: "121 ms", rows: "1,056", reports: "3", age: "1 s",
      node: "node-a", pid: "4000",
    });
    expect(cell(0, "memory").title).toContain("by this worker's own processes: 11.2 GiB");
    expect(cell(0, "cpu").title).toBe("4 torch threads on 8 cores");
  });

  it("shows n/a for what is unknown, with the reason, and leaves out what nobody knows", () => {
    const unknown = { util: null, mem_used: null, mem_total: null, mem_process: null, step: null, node: null, ip: null, note: "no NVML here" };
    const nobody = { temperature: null, power: null, step_s: null, wait_s: null, sync_s: null, report_s: null };
    say(snapshot({ workers: [worker(0, { ...unknown, ...nobody }), worker(1, nobody)] }));
    for (const key of ["util", "memory", "step", "node"]) expect(cell(0, key).textContent, key).toBe("n/a");
    expect(cell(0, "util").title).toBe("no NVML here");
    expect(cell(0, "memory").title).toBe("no NVML here");
    expect(cell(0, "util").querySelector(".rn-unknown-track")).not.toBeNull();
    const note = rows()[0]?.querySelector<HTMLTableCellElement>(".rn-note-row td");
    expect(note?.colSpan).toBe(rows()[0]?.querySelectorAll("tr:first-child > td:not([hidden])").length);
    for (const key of ["temperature", "power", "split", "own"]) {
      expect(head(key).hidden, key).toBe(true);
      expect(cell(0, key).hidden, key).toBe(true);
    }
    // They come when somebody knows them after all.
    say(delta(2, { workers: [{ rank: 1, temperature: 55 }] }));
    expect(head("temperature").hidden).toBe(false);
    expect(cell(0, "temperature").textContent).toBe("n/a");
    expect(cell(1, "temperature").textContent).toBe("55");
  });

  it("a row of nothing but its rank does not fail", () => {
    say(snapshot({ workers: [{ rank: 3 }] }));
    expect(ranks()).toEqual(["3"]);
    expect(panel.all('[role="alert"]').every((node) => node.hidden || !node.textContent?.includes("failed"))).toBe(true);
  });

  it("says what a waiting rank is in, and where a still one stands", () => {
    say(snapshot({ workers: [
      worker(0, { status: "waiting", waiting_since: 1_062, reports: 7 }),
      worker(1, { still_since: 1_045, where: "Cell In[3], line 12: loss.backward()" }),
    ] }));
    expect(cell(0, "status").textContent).toMatch(/^in report\(\) 7 · [34] s$/);
    expect(cell(0, "status").title).toContain("waiting in report() 7 since");
    const note = rows()[1]?.querySelector<HTMLElement>(".rn-note-row");
    expect(note?.hidden).toBe(false);
    expect(note?.textContent).toMatch(/^no step for 2\d s · at Cell In\[3\], line 12: loss\.backward\(\)$/);
    expect(rows()[0]?.querySelector<HTMLElement>(".rn-note-row")?.hidden).toBe(true);
    say(delta(2, { workers: [{ rank: 1, still_since: null, where: null }] }));
    expect(note?.hidden).toBe(true);
  });

  it("marks a slow rank in words: its own time against the median", () => {
    // Gradients keep all steps equally long: only the own time tells.
    say(snapshot({ workers: many(5, (rank) => ({ step_s: 0.2, sync_s: rank === 3 ? 0.01 : 0.1 })) }));
    expect(rows().map((_, i) => cell(i, "own").textContent)).toEqual(["1.0×", "1.0×", "1.0×", "slow 1.9×", "1.0×"]);
    expect(panel.text(`${VIEW} .rn-counts`)).toContain("1 slow");
    filter("slow");
    expect(ranks()).toEqual(["3"]);
  });

  it("a rank that saves the checkpoints is not slow for that: report() waits for all", () => {
    say(snapshot({ workers: many(3, (rank) => ({ step_s: 0.2, sync_s: 0.02, report_s: rank === 0 ? 0.1 : 0.09 })) }));
    expect(rows().map((_, i) => cell(i, "own").textContent)).toEqual(["0.9×", "1.0×", "1.0×"]);
    say(delta(2, { workers: [{ rank: 0, report_s: 0 }] }));
    expect(cell(0, "own").textContent).toBe("slow 2.0×");
  });

  it("splits the step's time into parts that add up, with the figures in the title", () => {
    say(snapshot({ workers: [worker(0, { step_s: 0.2, wait_s: 0.1, sync_s: 0.04, report_s: 0.02 })] }));
    const parts = [...cell(0, "split").querySelectorAll<HTMLElement>(".rn-part")];
    const width = (name: string): string | undefined =>
      parts.find((part) => part.classList.contains(`rn-split-${name}`))?.style.width;
    expect([width("rest"), width("wait"), width("report"), width("sync")]).toEqual(["20%", "50%", "10%", "20%"]);
    expect(cell(0, "split").title).toMatch(/data: 100 ms \(50 %\)/);
    say(delta(2, { workers: [{ rank: 0, sync_s: null }] }));
    expect(cell(0, "split").title).toMatch(/peers: n\/a,/);
  });

  it("marks what is of the whole device", () => {
    say(snapshot({ workers: [worker(0, { device_wide: true }), worker(1)] }));
    const tag = (row: number): HTMLElement | null => cell(row, "memory").querySelector(".rn-tag");
    expect(tag(0)?.hidden).toBe(false);
    expect(cell(0, "memory").title).toContain("device-wide");
    expect(tag(1)?.hidden).toBe(true);
  });

  it("sorts by any column, both ways, unknown last", () => {
    say(snapshot({ workers: many(3, (rank) => ({ util: [50, null, 90][rank] ?? null })) }));
    sortBy("util");
    expect(ranks()).toEqual(["2", "0", "1"]);
    expect(head("util").getAttribute("aria-sort")).toBe("descending");
    expect(head("rank").getAttribute("aria-sort")).toBe("none");
    sortBy("util");
    expect(ranks()).toEqual(["0", "2", "1"]);
    expect(head("util").getAttribute("aria-sort")).toBe("ascending");
    // New values move rows without a click.
    say(delta(2, { workers: [{ rank: 1, util: 10 }] }));
    expect(ranks()).toEqual(["1", "0", "2"]);
    expect(head("util").querySelector("button")?.tabIndex).toBe(0);
  });

  it("filters by rank, node and status", () => {
    say(snapshot({ workers: many(12, (rank) => ({ node: rank < 6 ? "node-a" : "node-b", status: rank === 8 ? "failed" : "running" })) }));
    filter("3, 7-9");
    expect(ranks()).toEqual(["3", "7", "8", "9"]);
    expect(panel.text(`${VIEW} .rn-counts`)).toContain("4 of 12 ranks");
    filter("node-b failed, 1");
    expect(ranks()).toEqual(["1", "8"]);
    filter("nowhere");
    expect(rows().every((row) => row.closest<HTMLElement>("[hidden]") !== null) || rows().length === 0).toBe(true);
    expect(panel.text(`${VIEW} > .rn-empty`)).toBe("No rank matches the filter.");
    filter("");
    expect(ranks()).toHaveLength(12);
  });

  it("pins a rank by a click on its row, and lets it go by another", () => {
    say(snapshot({ workers: [worker(0), worker(1)] }));
    cell(1, "step").click();
    panel.wait(200);
    expect(panel.model.sent.at(-1)).toEqual({ kind: "pin", ranks: [1] });
    const button = cell(1, "rank").querySelector("button");
    expect(button?.getAttribute("aria-pressed")).toBe("true");
    expect(button?.querySelector("svg")).not.toBeNull();
    button?.click();
    panel.wait(200);
    expect(panel.model.sent.at(-1)).toEqual({ kind: "pin", ranks: [] });
    expect(button?.getAttribute("aria-pressed")).toBe("false");
  });

  it("draws only the rows in view of a thousand, and the others when scrolled to", () => {
    say(snapshot({ run: run({ world_size: 1_000 }), workers: many(1_000, (rank) => ({ rows_rate: 10, util: rank % 100 })) }));
    const table = panel.get(`${VIEW} > .rn-table-scroll table`);
    expect(table.getAttribute("aria-rowcount")).toBe("1000");
    expect(rows().length).toBeLessThan(60);
    expect(ranks()[0]).toBe("0");
    const scroller = panel.get(`${VIEW} > .rn-table-scroll`);
    scroller.scrollTop = 27 * 500;
    scroller.dispatchEvent(new Event("scroll"));
    expect(ranks()).toContain("505");
    expect(ranks()).not.toContain("0");
    expect(rows().length).toBeLessThan(60);
    expect(rows()[10]?.querySelector("tr")?.getAttribute("aria-rowindex")).toBe(String(Number(ranks()[10]) + 1));
    const summary = panel.text(`${VIEW} .rn-summary`);
    expect(summary).toContain("1,000");
    expect(summary).toContain("Σ 10.0k");
  });

  it("keeps a row's nodes when it moves, and with them the focus", () => {
    say(snapshot({ workers: many(4, (rank) => ({ util: rank })) }));
    sortBy("util");
    const button = cell(0, "rank").querySelector("button");
    button?.focus();
    say(delta(2, { workers: [{ rank: 3, util: 2.5 }] }));
    expect(document.activeElement).toBe(button);
    expect(ranks()).toEqual(["3", "2", "1", "0"]);
  });

  it("shows the traffic of each node once", () => {
    say(snapshot({ workers: many(4, (rank) => ({ node: rank < 2 ? "a" : "b", net_in: rank === 0 ? null : 125e6 })) }));
    expect(panel.text(`${VIEW} .rn-fold summary`)).toBe("Network and disk of 2 nodes");
    const nodes = panel.all(`${VIEW} .rn-nodes .rn-row`).map((row) => row.textContent);
    expect(nodes).toHaveLength(2);
    expect(nodes[0]).toMatch(/^a2119 MiB\/s/);
    expect(panel.get(`${VIEW} .rn-nodes .rn-row .rn-c-net_in`).title).toContain("of the link's");
    const none = { net_in: null, net_out: null, disk_read: null, disk_write: null };
    say(snapshot({ seq: 2, workers: many(2, () => none) }));
    expect(panel.get(`${VIEW} .rn-fold`).hidden).toBe(true);
  });

  it("shows markup as text", () => {
    say(snapshot({ workers: [worker(0, {
      node: EVIL, ip: EVIL, device: EVIL, note: EVIL, where: EVIL, still_since: 1_000, shards: [shard({ name: EVIL })],
    })] }));
    expect(panel.el.querySelector("img, script")).toBeNull();
    expect(cell(0, "node").textContent).toBe(EVIL);
    expect(rows()[0]?.querySelector(".rn-note-row")?.textContent).toContain(EVIL);
  });
});

describe("rank filter", () => {
  const matching = (text: string): number[] => {
    const filter = parseFilter(text);
    if (filter === null) throw new Error("no filter");
    return Array.from({ length: 20 }, (_, rank) => rank).filter((rank) =>
      filter({ number: rank, texts: [rank < 10 ? "Node-A" : null, rank === 4 ? "waiting" : "running"] }));
  };

  it.each([
    ["3, 7-9", [3, 7, 8, 9]],
    ["rank 3", [3]],
    ["9-7 running", [7, 8, 9]],
    ["node-a waiting", [4]],
    ["waiting, 19", [4, 19]],
    ["7..8", [7, 8]],
    ["x", []],
  ] as const)("%s", (text, ranks) => {
    expect(matching(text)).toEqual(ranks);
  });

  it.each(["", "  ", ",", " , ,"])("%j filters nothing", (text) => {
    expect(parseFilter(text)).toBeNull();
  });
});

describe("stats", () => {
  it("medians leave out what is unknown; sums do not", () => {
    expect(median([3, null, 1, 2])).toBe(2);
    expect(median([4, 1])).toBe(2.5);
    expect(median([null])).toBeNull();
    expect(total([1, 2])).toBe(3);
    expect(total([1, null])).toBeNull();
    expect(total([])).toBeNull();
  });

  it("names ranks in runs", () => {
    expect(rankRuns([5, 0, 1, 2, 3, 9, 8])).toBe("0-3, 5, 8, 9");
    expect(rankRuns([0, 2, 4, 6], 2)).toBe("0, 2, …");
  });
});
