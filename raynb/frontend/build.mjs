// Builds the panel: src/ and uPlot become ../static/panel.js and panel.css.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "static");
const uplot = join(here, "node_modules", "uplot");
const target = ["chrome100", "firefox100", "safari15.4"];

await mkdir(out, { recursive: true });

const js = await esbuild.build({
  absWorkingDir: here,
  entryPoints: ["src/main.ts"],
  outfile: join(out, "panel.js"),
  bundle: true,
  format: "esm",
  minify: true,
  target,
  legalComments: "eof",
  charset: "utf8",
  metafile: true,
  logLevel: "warning",
});

// uPlot's sheet is wrapped so that it styles our charts only, not those of
// other widgets on the page; esbuild lowers the nesting for older browsers.
const theirs = await readFile(join(uplot, "dist", "uPlot.min.css"), "utf8");
const ours = await readFile(join(here, "src", "style.css"), "utf8");
const css = await esbuild.transform(`.raynb-panel {${theirs}}\n${ours}`, {
  loader: "css",
  minify: true,
  target,
  charset: "utf8",
});
await writeFile(join(out, "panel.css"), css.code);

const licence = await readFile(join(uplot, "LICENSE"), "utf8");
const { version } = JSON.parse(await readFile(join(uplot, "package.json"), "utf8"));
await writeFile(
  join(out, "LICENSES.txt"),
  `panel.js and panel.css contain uPlot ${version}, under this licence:\n\n${licence.trim()}\n`,
);

const size = Object.values(js.metafile.outputs).reduce((sum, o) => sum + o.bytes, 0);
console.log(`panel.js ${(size / 1000).toFixed(1)} kB, panel.css ${(css.code.length / 1000).toFixed(1)} kB`);
