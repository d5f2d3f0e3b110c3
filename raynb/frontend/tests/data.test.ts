import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { delta, run, shard, snapshot, worker } from "./messages";
import { openPanel, type OpenPanel } from "./open_panel";
import type { Shard, Worker } from "../src/wire";

const EVIL = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>';

let panel: OpenPanel;
beforeEach(() => {
  vi.useFakeTimers();
  panel = openPanel();
  panel.get<HTMLButtonElement>('[data-tab="data"]').click();
});
afterEach(() => {
  panel.close();
  vi.useRealTimers();
});

function say(content: object): void {
  panel.say(content);
  panel.wait(600);
}

function ranked(count: number, of: (rank: number) => Partial<Shard>, over: Partial<Worker> = {}): Worker[] {
  return Array.from({ length: count }, (_, rank) => worker(rank, { ...over, shards: [shard(of(rank))] }));
}

const VIEW = ".rn-data-view";
const rows = (loader = 0): HTMLElement[] => [
  ...(panel.all(`${VIEW} .rn-loader`)[loader]?.querySelectorAll<HTMLElement>(".rn-row") ?? []),
];
const cell = (row: number, key: string): HTMLElement => {
  const found = rows()[row]?.querySelector<HTMLElement>(`.rn-c-${key}`);
  if (found == null) throw new Error(`no cell ${key}`);
  return found;
};
const facts = (): string => panel.text(`${VIEW} .rn-facts`);

describe("data", () => {
  it("says how rows come to be counted while there is no loader", () => {
    say(snapshot({ workers: [worker(0, { shards: [] })] }));
    expect(panel.text(`${VIEW} .rn-empty`)).toContain("prepare_data_loader");
    expect(panel.all(`${VIEW} .rn-loader`)).toHaveLength(0);
  });

  it("adds up a loader over the ranks and gives each its row", () => {
    say(snapshot({ workers: [worker(0), worker(1)] }));
    expect(panel.text(`${VIEW} summary`)).toBe("train25,600 of 60,000 rows this epoch, over 2 ranks");
    for (const words of ["batch128 a worker, 256 global", "speed2,112 rows/s", "wait10 % of a step", "epoch ends in42 s", "shuffleon", "set_epochok", "kindmap-style"]) {
      expect(facts()).toContain(words);
    }
    expect(facts()).not.toContain("uneven");
    const text = (key: string): string | null => cell(0, key).textContent;
    expect([text("epoch"), text("rows"), text("batches"), text("batch_size"), text("rows_dropped"), text("rate"), text("wait"), text("eta"), text("shuffle"), text("set_epoch")])
      .toEqual(["1", "12,800 / 30,000", "100 / 235", "128", "0", "1,056", "10 %", "42 s", "on", "ok"]);
    expect(panel.get<HTMLProgressElement>(`${VIEW} progress`).value).toBeCloseTo(25_600 / 60_000);
  });

  it("draws bars on the scale of the largest shard, and says that shards are uneven", () => {
    say(snapshot({ workers: ranked(2, (rank) => ({ rows_total: rank === 0 ? 20_000 : 10_000, rows_seen: 5_000 })) }));
    const bar = (row: number): [string | undefined, string | undefined] => [
      cell(row, "rows").querySelector<HTMLElement>(".rn-bar-track")?.style.width,
      cell(row, "rows").querySelector<HTMLElement>(".rn-bar-fill")?.style.width,
    ];
    expect(bar(0)).toEqual(["100%", "25%"]);
    expect(bar(1)).toEqual(["50%", "50%"]);
    expect(facts()).toContain("uneven shards10,000 to 20,000 rows");
  });

  it("an open-ended loader has no share, and unknown is n/a", () => {
    const unknown = { rows_total: null, batches_total: null, epoch: null, batch_size: null, eta_s: null, shuffle: null, set_epoch: null, kind: null } as const;
    say(snapshot({ run: run({ shard_totals: {} }), workers: ranked(2, () => unknown) }));
    expect(panel.text(`${VIEW} summary`)).toBe("train25,600 of n/a rows, over 2 ranks");
    expect(panel.get(`${VIEW} progress`).hasAttribute("value")).toBe(false);
    expect(cell(0, "rows").textContent).toBe("12,800 / n/a");
    expect(facts()).toContain("batchn/a a worker, n/a global");
    expect(facts()).toContain("shufflen/a");
    expect(facts()).not.toContain("set_epoch");
    say(delta(2, { workers: [{ rank: 0, shards: [shard({ ...unknown, rows_seen: null })] }] }));
    expect(panel.text(`${VIEW} summary`)).toBe("trainn/a of n/a rows, over 2 ranks");
  });

  it("names the ranks that miss set_epoch, and what is dropped or repeated", () => {
    say(snapshot({ workers: ranked(4, (rank) => ({ set_epoch: rank < 3 ? "missing" : "ok", rows_dropped: 4, rows_repeated: rank })) }));
    expect(facts()).toContain("set_epochmissing on ranks 0-2");
    expect(facts()).toContain("dropped16 rows an epoch");
    expect(facts()).toContain("repeated6 rows an epoch");
  });

  it("has a section a loader; speed and waits are of the one trained on", () => {
    const both = [shard(), shard({ name: "validation", set_epoch: null })];
    say(snapshot({ workers: [worker(0, { shards: both }), worker(1, { shards: both })] }));
    const sections = panel.all(`${VIEW} .rn-loader`);
    expect(sections.map((section) => section.querySelector(".rn-loader-name")?.textContent)).toEqual(["train", "validation"]);
    expect(sections[1]?.querySelector(".rn-facts")?.textContent).not.toContain("speed");
    expect(sections[1]?.querySelector<HTMLElement>("th.rn-c-rate")?.hidden).toBe(true);
    say(delta(2, { workers: [{ rank: 0, shards: [both[1]] }, { rank: 1, shards: [both[1]] }] }));
    expect(panel.all(`${VIEW} .rn-loader-name`).map((node) => node.textContent)).toEqual(["validation"]);
  });

  it("keeps two loaders of one name apart", () => {
    say(snapshot({ workers: [worker(0, { shards: [shard({ rows_seen: 1 }), shard({ rows_seen: 2 })] })] }));
    expect(panel.all(`${VIEW} .rn-loader-name`).map((node) => node.textContent)).toEqual(["train", "train (2)"]);
    expect(rows(1)[0]?.textContent).toContain("2 / 30,000");
  });

  it("sums up a thousand ranks by their extremes, which lead to their rows", () => {
    say(snapshot({
      run: run({ world_size: 1_000, shard_totals: {} }),
      workers: ranked(1_000, (rank) => ({ rows_seen: rank === 700 ? 10 : 20_000 + (rank === 30 ? 5 : 0) })),
    }));
    expect(rows().length).toBeLessThan(60);
    const line = panel.get(`${VIEW} .rn-spread-line`);
    expect(line.textContent).toBe("rows seenmin 10 rank 700median 20,000max 20,005 rank 30");
    const strip = panel.get(`${VIEW} .rn-strip`);
    expect(strip.getAttribute("viewBox")).toBe("0 0 1000 100");
    expect(strip.querySelector(".rn-strip-part")?.getAttribute("d")?.match(/M/g)).toHaveLength(1_000);
    line.querySelector("button")?.click();
    const found = panel.get(`${VIEW} .rn-found`);
    expect(found.querySelector(".rn-c-rank")?.textContent).toBe("700");
  });

  it("pins by a click and shows markup as text", () => {
    say(snapshot({ workers: [worker(0, { shards: [shard({ name: EVIL })] })] }));
    expect(panel.text(`${VIEW} .rn-loader-name`)).toBe(EVIL);
    expect(panel.el.querySelector("img, script")).toBeNull();
    cell(0, "rows").click();
    expect(panel.model.sent.at(-1)).toEqual({ kind: "pin", ranks: [0] });
  });

  it("a folded section catches up when it is opened", () => {
    const shards = (rows_seen: number): Shard[] => [shard(), shard({ name: "validation", rows_seen })];
    const all = (rows_seen: number): Worker[] => Array.from({ length: 5 }, (_, rank) => worker(rank, { shards: shards(rows_seen) }));
    say(snapshot({ workers: all(1) }));
    const section = panel.all(`${VIEW} .rn-loader`)[1] as HTMLDetailsElement;
    expect(section.open).toBe(false);
    expect(rows(1)).toHaveLength(0);
    section.open = true;
    section.dispatchEvent(new Event("toggle"));
    expect(rows(1)).toHaveLength(5);
  });
});
