/** What jsdom lacks: a canvas to draw on, paths, media queries, object URLs. */
import { afterEach } from "vitest";

class NoPath {}
for (const name of ["moveTo", "lineTo", "rect", "arc", "closePath", "addPath", "bezierCurveTo"]) {
  Object.defineProperty(NoPath.prototype, name, { value: () => undefined });
}
Object.assign(globalThis, { Path2D: NoPath });

const context = new Proxy<Record<string | symbol, unknown>>(
  {},
  {
    get(target, name) {
      if (name === "measureText") return () => ({ width: 20 });
      return name in target ? target[name] : () => undefined;
    },
  },
);
Object.defineProperty(HTMLCanvasElement.prototype, "getContext", { value: () => context });

window.matchMedia = (media: string): MediaQueryList => ({
  media,
  matches: false,
  onchange: null,
  addEventListener: () => undefined,
  removeEventListener: () => undefined,
  addListener: () => undefined,
  removeListener: () => undefined,
  dispatchEvent: () => false,
});

// jsdom makes no object URLs, and follows links of none.
Object.assign(URL, { createObjectURL: () => "#", revokeObjectURL: () => undefined });

afterEach(() => {
  document.body.replaceChildren();
  sessionStorage.clear();
  for (const { name } of [...document.body.attributes]) document.body.removeAttribute(name);
});
