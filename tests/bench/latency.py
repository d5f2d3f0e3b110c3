"""How long an event on a worker takes to be seen: 8 ranks that log ten times a second.

Run by hand: ``python tests/bench/latency.py [--ranks 8] [--hz 10] [--seconds 30]``. Simulated ranks
log through real channels into a real supervisor; a real kernel watches it, and a real JupyterLab in
Chromium shows it. The history has the moment at which each rank logged each step; a
``MutationObserver`` in the page tells when the panel shows that step, two animation frames later,
when it is drawn for sure. In the Workers tab that is the rank's own row, in the Overview the newest
value of a chart, written in the same turn as its lines; there a step counts as seen only once every
rank has come so far, so the slowest rank tells. Bars, in both: half of the events within 250 ms,
99 % within 600 ms.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import math
import statistics
import time
from typing import Any

from in_browser import watched

#: Sends [drawn, steps by rank] for each change of the table; "" stands for all ranks.
WATCH = """(tab) => {
  const drawn = [];
  window.__drawn = drawn;
  const panel = document.querySelector('.jp-OutputArea-output .raynb-panel');
  const number = (text) => Number(text.replaceAll(',', '').replaceAll('−', '-'));
  const workers = () => [...panel.querySelectorAll('.rn-workers-view .rn-row .rn-c-step')].map(
    cell => [cell.parentElement.querySelector('.rn-c-rank').innerText, cell.innerText]);
  // The metric is a millionth of the step: "5.98e−4 to 6e−4".
  const chart = () => {
    const card = panel.querySelector('.rn-card[data-metric=acc] .rn-card-newest');
    return [['', String(Math.round(1e6 * number((card?.textContent ?? '').split(' to ')[0])))]];
  };
  let before = '';
  const look = () => {
    const rows = (tab === 'workers' ? workers() : chart()).map(
      ([rank, step]) => [rank.trim(), number(step.trim().split(/\\s/)[0])]);
    const said = JSON.stringify(rows);
    if (said === before) return;
    before = said;
    requestAnimationFrame(() => requestAnimationFrame(() => {
      drawn.push([(performance.timeOrigin + performance.now()) / 1000, rows]);
    }));
  };
  new MutationObserver(look).observe(
    panel, { subtree: true, childList: true, characterData: true, attributes: true });
}"""

HISTORY = """import ray, json
ray.get(sent)
ray.get([sender.close.remote() for sender in simulation.senders])
simulation.end.touch()
simulation.run._done.wait(60)
print(json.dumps([simulation.run.result[c].to_pylist() for c in ("rank", "step", "time")]))"""


def latencies(
    logged: dict[tuple[int, int], float], drawn: list[Any], ranks: int, begin: float, end: float
) -> list[float]:
    """Seconds from each event between ``begin`` and ``end`` to the first drawing that has it."""
    found = []
    for rank in range(ranks):
        shown = [
            (at, step)
            for at, rows in drawn
            for name, step in rows
            if name in ("", str(rank)) and not math.isnan(step)
        ]
        steps = list(itertools.accumulate((step for _, step in shown), max))
        for (one, step), when in logged.items():
            if one == rank and begin <= when <= end:
                at = bisect.bisect_left(steps, step)
                found.append(shown[at][0] - when if at < len(steps) else math.inf)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="in each of the two tabs")
    args = parser.parse_args()
    drawn, spans = {}, {}
    with watched(args.ranks, 2 * args.seconds + 15, args.hz, processes=1) as run:
        notebook = run.notebook
        for tab in ("overview", "workers"):
            notebook.tab(tab)
            notebook.page.evaluate(WATCH, tab)
            notebook.page.wait_for_timeout(1_000)
            begin = time.time()
            run.cpu()
            notebook.page.wait_for_timeout(1000 * args.seconds)
            spans[tab] = (begin, time.time())
            cpu = run.cpu()
            notebook.page.wait_for_timeout(1_500)
            drawn[tab] = notebook.page.evaluate("() => window.__drawn")
            shares = ", ".join(f"{k} {100 * v / args.seconds:.0f} %" for k, v in cpu.items())
            print(f"{tab}: % of a core: {shares}", flush=True)
        rank, step, at = json.loads(notebook.execute(HISTORY))
    logged = {(int(r), int(s)): t for r, s, t in zip(rank, step, at, strict=True)}
    print(f"\n{'':12}{'events':>8}{'median, ms':>12}{'p99, ms':>10}{'max, ms':>10}")
    for tab in drawn:
        took = [1e3 * t for t in latencies(logged, drawn[tab], args.ranks, *spans[tab])]
        median, p99 = statistics.median(took), statistics.quantiles(took, n=100)[-1]
        ok = median <= 250 and p99 <= 600
        print(
            f"{tab:12}{len(took):>8,}{median:>12.0f}{p99:>10.0f}{max(took):>10.0f}"
            f"{'' if ok else '   MISSED'}"
        )
    print(f"{'bars':20}{'<= 250':>12}{'<= 600':>10}")


if __name__ == "__main__":
    main()
