/** How smooth the page is: the time between frames, while the panel gets its messages. */

export interface Frames {
  seconds: number;
  frames: number;
  fps: number;
  /** Milliseconds between frames. */
  p50: number;
  p95: number;
  p99: number;
  worst: number;
  /** Share of the time in tasks of more than 50 ms, in percent. */
  long: number;
}

export async function measureFrames(seconds: number): Promise<Frames> {
  let long = 0;
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) long += task.duration;
  }).observe({ entryTypes: ["longtask"] });
  const gaps: number[] = [];
  const begun = performance.now();
  await new Promise<void>((done) => {
    let before = begun;
    const onFrame = (now: number): void => {
      gaps.push(now - before);
      before = now;
      if (now - begun < seconds * 1000) requestAnimationFrame(onFrame);
      else done();
    };
    requestAnimationFrame(onFrame);
  });
  const took = performance.now() - begun;
  gaps.sort((a, b) => a - b);
  const at = (share: number): number => round(gaps[Math.floor(share * (gaps.length - 1))] ?? 0);
  return {
    seconds: round(took / 1000),
    frames: gaps.length,
    fps: round((1000 * gaps.length) / took),
    p50: at(0.5),
    p95: at(0.95),
    p99: at(0.99),
    worst: at(1),
    long: round((100 * long) / took),
  };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
