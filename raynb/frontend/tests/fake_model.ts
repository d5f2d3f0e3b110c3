/** A model without a kernel: remembers what the panel sends, speaks back. */
import type { PanelModel } from "../src/main";
import type { Outgoing } from "../src/wire";

type Callback = (content: unknown, buffers: unknown[]) => void;

export class FakeModel implements PanelModel {
  readonly sent: Outgoing[] = [];
  readonly callbacks = new Set<Callback>();
  widget_manager?: unknown;

  constructor(private readonly view: "run" | "tune" = "run") {}

  get(name: "run_name" | "view"): string {
    return name === "view" ? this.view : "mnist";
  }

  on(_name: "msg:custom", callback: Callback): void {
    this.callbacks.add(callback);
  }

  off(_name: "msg:custom", callback: Callback): void {
    this.callbacks.delete(callback);
  }

  send(content: Outgoing): void {
    this.sent.push(content);
  }

  emit(content: unknown, buffers: unknown[] = []): void {
    for (const callback of this.callbacks) callback(content, buffers);
  }
}
