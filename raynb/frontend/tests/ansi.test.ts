import { describe, expect, it } from "vitest";
import { parseAnsi, renderAnsi, stripAnsi } from "../src/ansi";

function html(text: string): string {
  const div = document.createElement("div");
  div.append(renderAnsi(text));
  return div.innerHTML;
}

describe("ansi", () => {
  it("leaves plain text alone", () => {
    expect(html("a < b & c")).toBe("a &lt; b &amp; c");
  });

  it.each([
    ["\x1b[31mred\x1b[0m plain", '<span class="ansi-fg-1">red</span> plain'],
    ["\x1b[1;92mbold\x1b[22m not", '<span class="ansi-fg-10 ansi-bold">bold</span><span class="ansi-fg-10"> not</span>'],
    ["\x1b[44mon\x1b[49moff", '<span class="ansi-bg-4">on</span>off'],
    ["\x1b[4;3;2;7mall\x1b[m", '<span class="ansi-dim ansi-italic ansi-underline ansi-inverse">all</span>'],
    ["\x1b[38;5;9mindexed", '<span class="ansi-fg-9">indexed</span>'],
    ["\x1b[38;5;196mcube", '<span class="ansi-fg-9">cube</span>'],
    ["\x1b[38;2;0;120;0mtrue colour", '<span class="ansi-fg-2">true colour</span>'],
    ["\x1b[48;2;200;0;0;1mthen bold", '<span class="ansi-bg-1 ansi-bold">then bold</span>'],
    ["\x1b[38;5;240mgrey", '<span class="ansi-fg-8">grey</span>'],
  ])("styles %j", (text, expected) => {
    expect(html(text)).toBe(expected);
  });

  it.each([
    ["cursor moves", "a\x1b[2K\x1b[1Ab\x1b[?25l", "ab"],
    ["a title", "\x1b]0;title\x07text", "text"],
    ["a link", "\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"],
    ["an unfinished link", "text\x1b]8;;https://example.org", "text"],
    ["a charset", "\x1b(Btext", "text"],
    ["bells and returns", "a\x07\rb\x00", "ab"],
    ["a lone escape", "a\x1b", "a"],
    ["an unfinished colour", "a\x1b[31", "a31"],
  ])("drops %s", (_, text, expected) => {
    expect(stripAnsi(text)).toBe(expected);
  });

  it("keeps tabs, newlines and wide characters", () => {
    expect(stripAnsi("a\tb\nc 🚀 é")).toBe("a\tb\nc 🚀 é");
  });

  it("ignores nonsense codes", () => {
    expect(parseAnsi("\x1b[999;x;38m text")).toBeTruthy();
    expect(html("\x1b[999mtext")).toBe("text");
  });

  it("markup stays text", () => {
    const div = document.createElement("div");
    div.append(renderAnsi("\x1b[31m<img src=x onerror=alert(1)>\x1b[0m<script>1</script>"));
    expect(div.querySelector("img, script")).toBeNull();
    expect(div.textContent).toBe("<img src=x onerror=alert(1)><script>1</script>");
  });
});
