import { describe, expect, it } from "vitest";
import {
  formatBytes, formatCount, formatDuration, formatMemory, formatPercent, formatRate, formatValue,
} from "../src/format";

describe("numbers", () => {
  it("unknown reads n/a, zero reads zero", () => {
    for (const format of [formatBytes, formatCount, formatDuration, formatPercent, formatRate, formatValue]) {
      expect(format(null)).toContain("n/a");
      expect(format(0)).not.toContain("n/a");
    }
    expect(formatMemory(null, null)).toBe("n/a");
    expect(formatMemory(null, 2 ** 30)).toBe("n/a / 1.0 GiB");
  });

  it.each([
    [0.123456, "0.1235"], [12.0, "12"], [-0.5, "−0.5"], [0.000123, "1.23e−4"], [123456.7, "123,457"],
    [1.5e9, "1.50e9"], [Number.NaN, "NaN"], [Number.POSITIVE_INFINITY, "∞"], [Number.NEGATIVE_INFINITY, "−∞"],
  ])("value %d", (value, shown) => expect(formatValue(value)).toBe(shown));

  it.each([[8, "8 s"], [65, "1:05"], [3_900, "1:05:00"], [-3, "0 s"]])("duration %d", (value, shown) =>
    expect(formatDuration(value)).toBe(shown));

  it.each([[512, "512 B"], [1536, "1.5 KiB"], [139 * 2 ** 30, "139 GiB"]])("bytes %d", (value, shown) =>
    expect(formatBytes(value)).toBe(shown));

  it.each([[8.25, "8.3 steps/s"], [1_234.5, "1,235 steps/s"], [0.05, "20 s/step"]])("rate %d", (value, shown) =>
    expect(formatRate(value)).toBe(shown));
});
