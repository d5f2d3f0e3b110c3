/** Light or dark: the page's own word first, the system's preference last. */

export type Theme = "light" | "dark";

export function detectTheme(el: Element): Theme {
  const jupyter = el.closest("[data-jp-theme-light]") ?? document.body;
  const isLight = jupyter.getAttribute("data-jp-theme-light");
  if (isLight !== null) return isLight === "false" ? "dark" : "light";

  const vscode = document.body.getAttribute("data-vscode-theme-kind");
  if (vscode !== null) return /dark|^vscode-high-contrast$/.test(vscode) ? "dark" : "light";

  const named = document.documentElement.getAttribute("theme"); // Colab
  if (named === "dark" || named === "light") return named;

  const style = getComputedStyle(el);
  const background = style.getPropertyValue("--jp-layout-color1").trim();
  const luminance = background === "" ? null : luminanceOf(background);
  if (luminance !== null) return luminance < 0.5 ? "dark" : "light";

  const dark = typeof matchMedia === "function" && matchMedia("(prefers-color-scheme: dark)").matches;
  return dark ? "dark" : "light";
}

/** Calls back whenever the page or the system may have changed its theme. */
export function watchTheme(callback: () => void): () => void {
  const observer = new MutationObserver(callback);
  const options = {
    attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind", "theme", "class"],
  };
  observer.observe(document.body, options);
  observer.observe(document.documentElement, options);
  const media = typeof matchMedia === "function" ? matchMedia("(prefers-color-scheme: dark)") : null;
  media?.addEventListener("change", callback);
  return () => {
    observer.disconnect();
    media?.removeEventListener("change", callback);
  };
}

/** 0 (black) to 1 (white) of a #rgb, #rrggbb or rgb(…) colour. */
function luminanceOf(colour: string): number | null {
  let parts: number[] | null = null;
  const hex = /^#([0-9a-f]{3}|[0-9a-f]{6})$/i.exec(colour)?.[1];
  if (hex !== undefined) {
    const full = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
    parts = [0, 2, 4].map((at) => Number.parseInt(full.slice(at, at + 2), 16));
  } else {
    const rgb = /^rgba?\(\s*(\d+)[\s,]+(\d+)[\s,]+(\d+)/.exec(colour);
    if (rgb !== null) parts = rgb.slice(1, 4).map(Number);
  }
  if (parts === null) return null;
  const [r = 0, g = 0, b = 0] = parts;
  return (0.299 * r + 0.587 * g + 0.114 * b) / 255;
}
