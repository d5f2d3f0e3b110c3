/**
 * Stopping single trials. The kernel is asked by a message; it is never
 * interrupted for it, since that would end the whole search.
 */
import type { Trial } from "./search_wire";
import { ACK_MS, RETRY_MS } from "./stop";
import { isOpen } from "./trial_look";

export type TrialStop = "sent" | "acknowledged" | "unanswered";

export class TrialStops {
  private readonly asked = new Map<number, { phase: TrialStop; timers: ReturnType<typeof setTimeout>[] }>();

  constructor(
    private readonly send: (trial: number) => void,
    private readonly changed: () => void,
  ) {}

  /** Null where nobody asked, or where it can be asked again. */
  phase(trial: number): TrialStop | null {
    return this.asked.get(trial)?.phase ?? null;
  }

  request(trial: number): void {
    if (this.asked.has(trial)) return;
    const timers = [
      setTimeout(() => {
        if (this.phase(trial) === "sent") this.set(trial, "unanswered");
      }, ACK_MS),
      setTimeout(() => this.forget(trial), RETRY_MS),
    ];
    this.asked.set(trial, { phase: "sent", timers });
    this.send(trial);
    this.changed();
  }

  onAck(trial: number): void {
    if (this.asked.has(trial)) this.set(trial, "acknowledged");
  }

  onTrials(trials: ReadonlyMap<number, Trial>): void {
    for (const trial of this.asked.keys()) {
      const row = trials.get(trial);
      if (row === undefined || !isOpen(row)) this.forget(trial);
    }
  }

  destroy(): void {
    for (const trial of [...this.asked.keys()]) this.drop(trial);
  }

  private set(trial: number, phase: TrialStop): void {
    const asked = this.asked.get(trial);
    if (asked !== undefined) asked.phase = phase;
    this.changed();
  }

  private forget(trial: number): void {
    this.drop(trial);
    this.changed();
  }

  private drop(trial: number): void {
    for (const timer of this.asked.get(trial)?.timers ?? []) clearTimeout(timer);
    this.asked.delete(trial);
  }
}
