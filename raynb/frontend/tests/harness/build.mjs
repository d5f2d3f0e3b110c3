// Bundles the harness as a plain script, so that the page opens from a file:
//   node build.mjs && node tests/harness/build.mjs
//   then tests/harness/index.html?scene=running&theme=dark&ranks=4 or search.html?trials=50
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
await esbuild.build({
  entryPoints: [join(here, "harness.ts"), join(here, "search.ts")],
  outdir: join(here, "dist"),
  bundle: true,
  format: "iife",
  logLevel: "warning",
});
