import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { delta, log, snapshot, worker } from "./messages";
import { openPanel, type OpenPanel } from "./open_panel";
import { fold, renderLine } from "../src/log_lines";

const EVIL = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>';

let panel: OpenPanel;
let saved: { name: string; blob: Blob }[];

beforeEach(() => {
  vi.useFakeTimers();
  saved = [];
  let blob: Blob | null = null;
  URL.createObjectURL = (data) => {
    blob = data as Blob;
    return "blob:test";
  };
  URL.revokeObjectURL = () => undefined;
  vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(function (this: HTMLAnchorElement) {
    if (blob !== null) saved.push({ name: this.download, blob });
  });
  panel = openPanel();
  panel.get<HTMLButtonElement>('[data-tab="logs"]').click();
  panel.say(snapshot({
    workers: [worker(0), worker(1)],
    logs: [log(0, 1, "zero"), log(1, 1, "\x1b[31mone\x1b[0m and more", "err")],
    logs_dropped: { 1: 12 },
  }));
});
afterEach(() => {
  panel.close();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const VIEW = ".rn-logs-view";
const lines = (): string[] => panel.all(".rn-log-line").map((line) => line.textContent ?? "");
const readout = (): string => panel.text(`${VIEW} .rn-readout`);
const found = (): string => panel.text(`${VIEW} .rn-toolbar .rn-note`);
function button(text: string): HTMLButtonElement {
  const one = panel.all(`${VIEW} button`).find((node) => node.textContent === text);
  if (one === undefined) throw new Error(`no button ${text}`);
  return one as HTMLButtonElement;
}
function choose(rank: string): void {
  const select = panel.get<HTMLSelectElement>(`${VIEW} select`);
  select.value = rank;
  select.dispatchEvent(new Event("change"));
}
function search(text: string): HTMLInputElement {
  const input = panel.get<HTMLInputElement>(`${VIEW} input[type="search"]`);
  input.value = text;
  input.dispatchEvent(new Event("input"));
  return input;
}
async function textOf(index: number): Promise<string> {
  vi.useRealTimers();
  const blob = saved[index]?.blob;
  if (blob === undefined) throw new Error("nothing was saved");
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.readAsText(blob);
  });
}

describe("logs", () => {
  it("shows all ranks with their number, or one without, in colours", () => {
    expect(lines()).toEqual(["0zero", "1one and more"]);
    expect(panel.get(".rn-log-line.rn-err .ansi-fg-1").textContent).toBe("one");
    expect(readout()).toBe("last 2 lines · 12 dropped");
    choose("1");
    expect(lines()).toEqual(["one and more"]);
    choose("0");
    expect(readout()).toBe("last 1 line");
  });

  it("replaces a progress line in place", () => {
    panel.say(delta(2, { logs: [log(0, 1, "zero, 50 %"), log(0, 2, "two")] }));
    expect(lines()).toEqual(["0zero, 50 %", "1one and more", "0two"]);
  });

  it("shows stderr alone when asked", () => {
    button("stderr only").click();
    expect(lines()).toEqual(["1one and more"]);
    choose("0");
    expect(lines()).toEqual([]);
    expect(panel.text(`${VIEW} > .rn-empty`)).toBe("No lines of this kind.");
  });

  it("holds still while paused, says how much is new, and catches up after", () => {
    button("pause").click();
    panel.say(delta(2, { logs: [log(0, 1, "changed"), log(0, 2, "later"), log(1, 2, "later too")] }));
    expect(lines()).toEqual(["0zero", "1one and more"]);
    expect(readout()).toContain("paused, 2 new");
    choose("0");
    expect(readout()).toContain("paused, 1 new");
    choose("all");
    button("pause").click();
    expect(lines()).toEqual(["0changed", "1one and more", "0later", "1later too"]);
    expect(readout()).not.toContain("paused");
  });

  it("finds words whatever their case, marks them across colours, and goes through them", () => {
    panel.say(delta(2, { logs: [log(0, 2, "ONE \x1b[1mtw\x1b[0mo one"), log(0, 3, "none here")] }));
    const input = search("oNe");
    expect(panel.all(".rn-log mark").map((mark) => mark.textContent)).toEqual(["one", "ONE", "one", "one"]);
    // It starts at the newest match.
    expect(found()).toBe("3 of 3 lines");
    expect(panel.text(".rn-current")).toBe("0none here");
    const press = (key: string, shiftKey = false): void => {
      input.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true }));
    };
    press("Enter", true);
    expect(found()).toBe("2 of 3 lines");
    press("Enter");
    press("Enter");
    expect(found()).toBe("1 of 3 lines");
    expect(panel.text(".rn-current")).toBe("1one and more");
    search("two");
    expect(panel.all(".rn-log mark").map((mark) => mark.textContent)).toEqual(["tw", "o"]);
    search("(.*");
    expect(found()).toBe("no match");
    expect(button("↓").disabled).toBe(true);
    press("Escape");
    expect(panel.all(".rn-log mark")).toHaveLength(0);
  });

  it("draws only what is in view of twelve thousand lines, the newest last", () => {
    panel.say(delta(2, { logs: Array.from({ length: 12_000 }, (_, i) => log(i % 40, Math.floor(i / 40) + 5, `line ${i}`)) }));
    expect(readout()).toContain("last 12,000 lines");
    expect(lines().length).toBeLessThan(100);
    const list = panel.get(".rn-log");
    list.scrollTop = 0;
    list.dispatchEvent(new Event("scroll"));
    const first = lines().length;
    expect(first).toBeGreaterThan(10);
    expect(first).toBeLessThan(100);
  });

  it("asks the kernel for a rank's log, saves it and says so", async () => {
    choose("1");
    button("download").click();
    expect(panel.model.sent.at(-1)).toEqual({ kind: "download", rank: 1 });
    expect(panel.text(`${VIEW} > .rn-note`)).toContain("Asking");
    const bytes = new TextEncoder().encode("the whole log");
    panel.say(
      { v: 2, kind: "file", rank: 1, name: "rank-00001.log", whole: false, note: "The first 3 MB are left out." },
      [new DataView(bytes.buffer)],
    );
    expect(panel.text(`${VIEW} > .rn-note`)).toBe("Saved rank-00001.log, which is not the whole log. The first 3 MB are left out.");
    panel.wait(6_000);
    expect(saved.map(({ name }) => name)).toEqual(["rank-00001.log"]);
    expect(await textOf(0)).toBe("the whole log");
  });

  it("saves the lines shown when no answer comes, and says so", async () => {
    choose("1");
    button("download").click();
    panel.wait(4_900);
    expect(saved).toEqual([]);
    panel.wait(200);
    expect(saved.map(({ name }) => name)).toEqual(["rank-00001-shown.log"]);
    expect(panel.text(`${VIEW} > .rn-note`)).toContain("did not answer within 5 s");
    expect(await textOf(0)).toBe("one and more\n");
  });

  it("saves the lines shown of all ranks without asking", async () => {
    button("download").click();
    expect(panel.model.sent.some(({ kind }) => kind === "download")).toBe(false);
    expect(panel.text(`${VIEW} > .rn-note`)).toContain("choose a rank");
    expect(await textOf(0)).toBe("[rank 0] zero\n[rank 1] one and more\n");
  });

  it("forgets a download when the panel closes", () => {
    choose("0");
    button("download").click();
    panel.close();
    expect(vi.getTimerCount()).toBe(0);
    panel = openPanel();
  });

  it("breaks long lines or not", () => {
    expect(panel.get(".rn-log").classList.contains("rn-wrap")).toBe(true);
    button("wrap").click();
    expect(panel.get(".rn-log").classList.contains("rn-wrap")).toBe(false);
    expect(lines()).toHaveLength(2);
  });

  it("shows markup as text, also where words are marked in it", () => {
    panel.say(delta(2, { logs: [log(0, 2, EVIL), log(0, 3, `\x1b[1m${EVIL}\x1b[0m`)] }));
    search("<img");
    expect(panel.all(".rn-log mark")).toHaveLength(2);
    expect(lines().slice(2)).toEqual([`0${EVIL}`, `0${EVIL}`]);
    expect(panel.el.querySelector("img, script")).toBeNull();
  });

  it("says before the first line that there is none yet", () => {
    panel.say(snapshot({ seq: 9 }));
    expect(panel.text(`${VIEW} > .rn-empty`)).toContain("No output yet");
  });
});

describe("log lines", () => {
  it("folds case without moving a place", () => {
    expect(fold("ÄBC")).toBe("äbc");
    const text = "İstanbul ERROR";
    expect(fold(text)).toHaveLength(text.length);
    const line = log(0, 1, text);
    const marked = renderLine(line, fold("error"));
    expect(marked.querySelector("mark")?.textContent).toBe("ERROR");
    expect(marked.textContent).toBe(text);
  });
});
