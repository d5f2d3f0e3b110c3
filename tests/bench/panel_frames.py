"""How smooth the page stays while very many ranks are watched.

Run by hand: ``python tests/bench/panel_frames.py [--ranks 1000] [--hz 10] [--seconds 60]``.
Simulated ranks log two metrics ten times a second and send samples, shards and timings once a
second through real channels into a real supervisor; a real kernel watches it, and a real JupyterLab
in Chromium shows it, half of the time in the Overview and half in the Workers tab. Bars: at least
30 frames a second, at most 10 messages and 1 MB a second. ``--shots DIR`` keeps pictures,
``--profile DIR`` the page's CPU profiles for Chromium's developer tools.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time

from in_browser import watched

#: Seconds that are left out: ranks join, series grow to their bounds.
WARM_S = 10.0

FRAMES = """async (seconds) => {
  let long = 0;
  const observer = new PerformanceObserver((list) => {
    for (const task of list.getEntries()) long += task.duration;
  });
  observer.observe({ entryTypes: ['longtask'] });
  const gaps = [];
  const began = performance.now();
  let before = began;
  await new Promise((done) => {
    const onFrame = (now) => {
      gaps.push(now - before);
      before = now;
      if (now - began < 1000 * seconds) requestAnimationFrame(onFrame);
      else done();
    };
    requestAnimationFrame(onFrame);
  });
  observer.disconnect();
  const took = performance.now() - began;
  gaps.sort((a, b) => a - b);
  return {
    fps: 1000 * gaps.length / took,
    p99: gaps[Math.floor(0.99 * (gaps.length - 1))],
    worst: gaps.at(-1),
    long: 100 * long / took,
  };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--shots", type=pathlib.Path)
    parser.add_argument("--profile", type=pathlib.Path)
    args = parser.parse_args()
    half = args.seconds / 2
    lines = []
    with watched(args.ranks, args.seconds + 60, args.hz, args.processes) as run:
        notebook = run.notebook
        session = notebook.page.context.new_cdp_session(notebook.page)
        notebook.page.wait_for_timeout(1000 * WARM_S)
        for tab in ("overview", "workers"):
            notebook.tab(tab)
            notebook.page.wait_for_timeout(2_000)
            if args.profile:
                session.send("Profiler.enable")
                session.send("Profiler.start")
            run.cpu()
            began = time.time()
            frames = notebook.page.evaluate(FRAMES, half)
            took = time.time() - began
            cpu = {role: 100 * spent / took for role, spent in run.cpu().items()}
            rates = run.rates(began, began + took)
            if args.profile:
                args.profile.mkdir(parents=True, exist_ok=True)
                kept = args.profile / f"{tab}.cpuprofile"
                kept.write_text(json.dumps(session.send("Profiler.stop")["profile"]))
            if args.shots:
                args.shots.mkdir(parents=True, exist_ok=True)
                fine = {"width": 1100, "height": 1300, "deviceScaleFactor": 1.5, "mobile": False}
                session.send("Emulation.setDeviceMetricsOverride", fine)
                notebook.page.wait_for_timeout(2_000)
                notebook.panel.screenshot(path=str(args.shots / f"panel-many-ranks-{tab}.png"))
                session.send("Emulation.clearDeviceMetricsOverride")
            ok = frames["fps"] >= 30 and rates[0] <= 10 and 0 < rates[1] < 1e6
            lines.append(
                f"{tab:12}{frames['fps']:>10.1f}{frames['p99']:>9.0f}{frames['worst']:>11.0f}"
                f"{frames['long']:>8.1f}{rates[0]:>12.1f}{rates[1] / 1e3:>9.0f}"
                f"{'' if ok else '   MISSED'}"
            )
            lines.append("    % of a core: " + ", ".join(f"{k} {v:.0f}" for k, v in cpu.items()))
        said = notebook.panel.locator(".rn-dropped").inner_text() or "nothing dropped"
    print(f"{args.ranks:,} ranks, {args.hz:g} records a second each; {said}")
    heads = ("frames/s", "p99, ms", "worst, ms", "long %", "messages/s", "kB/s")
    print(
        f"{'':12}{heads[0]:>10}{heads[1]:>9}{heads[2]:>11}{heads[3]:>8}{heads[4]:>12}{heads[5]:>9}"
    )
    print("\n".join(lines))
    print(f"{'bars':12}{'>= 30':>10}{'':>28}{'<= 10':>12}{'< 1000':>9}")


if __name__ == "__main__":
    main()
