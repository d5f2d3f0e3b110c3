import { describe, expect, it } from "vitest";
import { decode } from "../src/decode";
import { PanelState } from "../src/model";
import { curvesOf, indexAt, planeOf, type Curve } from "../src/trial_curves";
import { TrialsShown, type Scene } from "../src/trials_shown";
import type { Update } from "../src/wire";
import { eightTrials } from "./open_search";

function opened(act: (shown: TrialsShown) => void = () => undefined): { state: PanelState; scene: Scene } {
  const { content, buffers } = eightTrials();
  const state = new PanelState(() => 1_065);
  state.apply(decode(content, buffers).message as Update);
  const shown = new TrialsShown();
  act(shown);
  const scene = shown.scene(state);
  if (scene === null) throw new Error("no scene");
  return { state, scene };
}

const size = { width: 600, height: 250 };

describe("learning curves", () => {
  it("are those of the trials shown, of one metric", () => {
    const { state, scene } = opened();
    expect(curvesOf(state, scene, "val_accuracy", false).map(({ trial, y }) => [trial.trial, [...y]])).toEqual([
      [0, [0.7, 0.81]],
      [1, [0.6, 0.8, 0.93]],
      [3, [0.4]],
    ]);
    expect(curvesOf(state, scene, "train_loss", false)).toHaveLength(1);
    expect(curvesOf(state, scene, "nothing", false)).toEqual([]);
    const few = opened((shown) => (shown.filter = "pruned"));
    expect(curvesOf(few.state, few.scene, "val_accuracy", false).map(({ trial }) => trial.trial)).toEqual([3]);
  });

  it("by time begin when their trial does", () => {
    const { state, scene } = opened();
    const trial = state.trials.get(1);
    if (trial === undefined) throw new Error("no trial");
    // The run began at 1000; results came 1, 2 and 3 seconds later.
    state.trials.set(1, { ...trial, started: 1_000.5 });
    state.trialsVersion += 1;
    const fresh = new TrialsShown().scene(state) ?? scene;
    const curve = curvesOf(state, fresh, "val_accuracy", true).find((one) => one.trial.trial === 1);
    expect([...(curve?.x ?? [])]).toEqual([0.5, 1.5, 2.5]);
  });

  const curveOf = (values: number[]): Curve => {
    const { state } = opened();
    const trial = state.trials.get(0);
    if (trial === undefined) throw new Error("no trial");
    return { trial, x: Float64Array.from(values, (_, i) => i + 1), y: Float64Array.from(values) };
  };

  it("one that diverges does not flatten the others, and is said", () => {
    const { scene } = opened();
    const tame = Array.from({ length: 20 }, (_, i) => curveOf([2 + i / 20, 1 + i / 20]));
    const { plane, note } = planeOf([...tame, curveOf([3, 1e12])], scene, false, false, size);
    expect(plane.y.high).toBeLessThan(4);
    expect(note).toContain("1 curve beyond");
    expect(note).toContain("higher is better");
  });

  it("a logarithm needs positive values, else it is said", () => {
    const { scene } = opened();
    expect(planeOf([curveOf([0.001, 10])], scene, false, true, size).plane.y.kind).toBe("log");
    const { plane, note } = planeOf([curveOf([0, 10])], scene, false, true, size);
    expect(plane.y.kind).toBe("linear");
    expect(note).toContain("not positive");
  });

  it("the axis of iterations ends at a round number, so that it seldom moves", () => {
    const { scene } = opened();
    const ends = [64, 70, 79].map((n) => planeOf([curveOf(Array.from({ length: n }, () => 1))], scene, false, false, size).plane.x.high);
    expect(new Set(ends)).toEqual(new Set([80]));
  });

  it("finds the place before an x", () => {
    expect([0, 1, 2.9, 3, 99].map((x) => indexAt(Float64Array.of(1, 2, 3), x))).toEqual([0, 0, 1, 2, 2]);
  });
});
