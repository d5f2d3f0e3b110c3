// Bundles the harness as a plain script, so that the page opens from a file:
//   node build.mjs && node tests/harness/build.mjs
//   then tests/harness/index.html?scene=running&theme=dark&ranks=4
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
await esbuild.build({
  entryPoints: [join(here, "harness.ts")],
  outfile: join(here, "dist", "harness.js"),
  bundle: true,
  format: "iife",
  logLevel: "warning",
});
