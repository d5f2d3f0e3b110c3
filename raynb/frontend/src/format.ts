/** Numbers as people read them. What is unknown reads "n/a", never 0. */

export const UNKNOWN = "n/a";

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function formatCount(value: number | null): string {
  return value === null ? UNKNOWN : grouped.format(value);
}

/** A metric's value in about four digits; NaN and infinities by name. */
export function formatValue(value: number | null): string {
  if (value === null) return UNKNOWN;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return minus(value.toExponential(2));
  if (Number.isInteger(value)) return minus(grouped.format(value));
  return minus(size >= 1000 ? grouped.format(value) : String(Number(value.toPrecision(4))));
}

/** The same for an axis, where digits that say nothing take room: "1e−6". */
export function formatTick(value: number): string {
  return formatValue(value).replace(/\.?0+e/, "e");
}

export function formatRate(value: number | null): string {
  if (value === null) return `${UNKNOWN} steps/s`;
  if (value !== 0 && value < 0.1) return `${formatValue(1 / value)} s/step`;
  return `${value >= 100 ? grouped.format(value) : value.toFixed(1)} steps/s`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

export function formatBytes(value: number | null): string {
  if (value === null) return UNKNOWN;
  const [scaled, unit] = scaleBytes(value);
  return `${scaled} ${unit}`;
}

/** "12.1 / 80.0 GiB": both in the total's unit. */
export function formatMemory(used: number | null, total: number | null): string {
  if (used === null && total === null) return UNKNOWN;
  if (total === null) return formatBytes(used);
  const [scaled, unit, power] = scaleBytes(total);
  return used === null
    ? `${UNKNOWN} / ${scaled} ${unit}`
    : `${digits(used / 1024 ** power)} / ${scaled} ${unit}`;
}

function scaleBytes(value: number): [string, string, number] {
  let power = 0;
  while (power < UNITS.length - 1 && value / 1024 ** power >= 1000) power++;
  return [power === 0 ? String(value) : digits(value / 1024 ** power), UNITS[power] ?? "B", power];
}

function digits(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

export function formatPercent(value: number | null): string {
  return value === null ? UNKNOWN : `${Math.round(value)} %`;
}

/** "8 s", "2:05", "1:05:00". */
export function formatDuration(seconds: number | null): string {
  if (seconds === null) return UNKNOWN;
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  const two = (value: number): string => String(value).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h > 0 ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** "1 rank", "2 ranks". */
export function plural(count: number, what: string): string {
  return `${grouped.format(count)} ${what}${count === 1 ? "" : "s"}`;
}

function minus(shown: string): string {
  return shown.replace(/^-/, "−").replace("e+", "e").replace("e-", "e−");
}

/** "850 µs", "12 ms", "1.25 s", then as a duration. */
export function formatSeconds(value: number | null): string {
  if (value === null) return UNKNOWN;
  if (value >= 100) return formatDuration(value);
  if (value >= 1) return `${value.toFixed(value >= 10 ? 1 : 2)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toFixed(value >= 0.01 ? 0 : 1)} ms`;
  return value === 0 ? "0 s" : `${(value * 1e6).toFixed(0)} µs`;
}

/** "980", "12.3k", "4.56M": three digits, for narrow columns. */
export function formatShort(value: number | null): string {
  if (value === null) return UNKNOWN;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]] as const) {
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return minus(`${scaled.toFixed(Math.abs(scaled) >= 100 ? 0 : 1)}${unit}`);
    }
  }
  return minus(Math.abs(value) >= 100 ? grouped.format(value) : String(Number(value.toPrecision(3))));
}

/** "12:03:05", the reader's own clock. */
export function formatClock(time: number | null): string {
  return time === null ? UNKNOWN : new Date(time * 1000).toLocaleTimeString();
}
