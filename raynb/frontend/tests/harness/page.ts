/** The page around a harness: its theme and width by the query, and its frame times. */
import { measureFrames } from "./frames";

export const query = new URLSearchParams(location.search);

const JUPYTER: Record<string, Record<string, string>> = {
  "jupyter-light": {
    "--jp-layout-color1": "#fff",
    "--jp-layout-color2": "#eee",
    "--jp-border-color2": "#e0e0e0",
    "--jp-ui-font-color1": "rgba(0, 0, 0, 0.87)",
  },
  "jupyter-dark": {
    "--jp-layout-color1": "#111",
    "--jp-layout-color2": "#424242",
    "--jp-border-color2": "#424242",
    "--jp-ui-font-color1": "rgba(255, 255, 255, 1)",
  },
};

/** Dresses the page; gives the place for the panel. */
export function openPage(): HTMLElement {
  const theme = query.get("theme") ?? "light";
  for (const [name, value] of Object.entries(JUPYTER[theme] ?? {})) {
    document.documentElement.style.setProperty(name, value);
  }
  document.body.setAttribute("data-jp-theme-light", String(!theme.includes("dark")));
  document.body.style.background = theme.includes("dark") ? "#111" : "#fff";
  const width = query.get("width");
  if (width !== null) document.body.style.width = `${width}px`;
  const el = document.querySelector<HTMLElement>("#panel");
  if (el === null) throw new Error("no place for the panel");
  return el;
}

/** With measure=SECONDS: after three seconds to settle, frame times to the console. */
export function measureIfAsked(): void {
  const seconds = Number(query.get("measure") ?? 0);
  if (seconds <= 0) return;
  setTimeout(() => {
    void measureFrames(seconds).then((frames) => console.log(`frames ${JSON.stringify(frames)}`));
  }, 3_000);
}
