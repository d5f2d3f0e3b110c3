/** The kernel's own messages, as tests/golden keeps them. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const FOLDER = join(__dirname, "..", "..", "..", "tests", "golden");
export const names = existsSync(FOLDER)
  ? readdirSync(FOLDER).filter((name) => /^wire_.*\.json$/.test(name))
  : [];

interface Golden {
  content: Record<string, unknown>;
  buffers: string[];
}

export function read(name: string): { content: Golden["content"]; buffers: DataView[] } {
  const { content, buffers } = JSON.parse(readFileSync(join(FOLDER, name), "utf8")) as Golden;
  return {
    content,
    buffers: buffers.map((text) => {
      const bytes = Buffer.from(text, "base64");
      return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    }),
  };
}
