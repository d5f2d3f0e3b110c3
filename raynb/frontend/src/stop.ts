/**
 * Stopping a run from the browser. A message is asked first; a kernel that runs
 * a cell may be unable to read it, so without an answer within a second the
 * kernel is interrupted, but only when that very cell waits for this run.
 */
import type { Outgoing, Run } from "./wire";

export const ACK_MS = 1_000;
export const RETRY_MS = 10_000;

export type StopPhase = "idle" | "sent" | "acknowledged" | "interrupted" | "unanswered";

export interface StopLinks {
  send(message: Outgoing): void;
  /** Interrupts the kernel, where the front end lets a widget do that. */
  interrupt: (() => Promise<unknown>) | null;
  changed(): void;
}

const OVER: ReadonlySet<string> = new Set(["finished", "failed", "stopped"]);

export class StopControl {
  phase: StopPhase = "idle";
  /** What the reader should know, or "". */
  note = "";
  private run: Run | null = null;
  private timers: ReturnType<typeof setTimeout>[] = [];

  constructor(private readonly links: StopLinks) {}

  get enabled(): boolean {
    return this.phase === "idle" && this.run?.stoppable === true;
  }

  request(): void {
    if (!this.enabled) return;
    this.set("sent", "");
    this.links.send({ kind: "stop" });
    this.timers.push(setTimeout(() => this.escalate(), ACK_MS));
    this.timers.push(setTimeout(() => this.giveUp(), RETRY_MS));
  }

  onAck(): void {
    if (this.phase === "idle") return;
    this.set("acknowledged", "");
  }

  onRun(run: Run): void {
    this.run = run;
    if (this.phase !== "idle" && OVER.has(run.state)) {
      this.clearTimers();
      this.set("idle", "");
    }
  }

  destroy(): void {
    this.clearTimers();
  }

  private escalate(): void {
    if (this.phase !== "sent") return;
    if (this.run?.blocking !== true) {
      this.set("unanswered", "waiting for the kernel; it may be busy");
      return;
    }
    if (this.links.interrupt === null) {
      this.set("unanswered", "the kernel is busy: use the kernel's interrupt button");
      return;
    }
    this.set("interrupted", "the kernel is busy: interrupting the cell");
    const failed = (): void =>
      this.set("unanswered", "the kernel is busy: use the kernel's interrupt button");
    this.links.interrupt().catch(failed);
  }

  /** The run goes on: let the reader try again. */
  private giveUp(): void {
    this.clearTimers();
    if (this.phase === "idle") return;
    const note = this.phase === "acknowledged" ? "" : "no answer yet; you can try again";
    if (this.run?.stoppable === true) this.set("idle", note);
  }

  private set(phase: StopPhase, note: string): void {
    this.phase = phase;
    this.note = note;
    this.links.changed();
  }

  private clearTimers(): void {
    for (const timer of this.timers) clearTimeout(timer);
    this.timers = [];
  }
}
