"""Two hundred warm runs in a row: some raise, some are stopped, one worker is killed.

Run by hand: ``python tests/bench/warm_soak.py [--runs 200]``. Prints the workers' memory over time,
and what the last run has in common with the first. The bars: the last behaves as the first, memory
is flat within 10 % since the workers were last started, and no process is left after ``down``.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time

import psutil

CODE = """
def train_func(config):
    import time, torch, ray.train, ray.train.torch, torch.distributed as dist
    import raynb
    rank = ray.train.get_context().get_world_rank()
    began = time.time()
    torch.manual_seed(7)
    model = ray.train.torch.prepare_model(torch.nn.Linear(256, 256))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(5):
        loss = model(torch.randn(64, 256)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        raynb.log({"loss": loss.item()})
    if config["kind"] == "raises" and rank == 1:
        raise ValueError("on purpose")
    if config["kind"] in ("stopped", "killed"):
        time.sleep(1e6)
    dist.barrier()
    return loss.item()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    runs = args.runs
    kinds = ["plain"] * runs
    for k in range(20 * runs // 200):
        kinds[3 + k * 9] = "raises"
    for k in range(max(1, 5 * runs // 200)):
        kinds[5 + k * 36 if 5 + k * 36 < runs else 5] = "stopped"
    kinds[min(runs - 1, 24)] = "killed"

    import raynb
    from raynb._ray import cluster
    from raynb.errors import RaynbError

    names: dict = {}
    exec(CODE, names)
    with tempfile.TemporaryDirectory() as directory:
        cluster.start_local(num_cpus=4)
        raynb.workers.up(2)
        seconds: list[float] = []
        results: list = []
        memory: list[tuple[int, int, int]] = []  # run, workers' bytes, supervisor's threads
        started_at = 0
        for number, kind in enumerate(kinds):
            began = time.time()
            run = raynb.train(
                names["train_func"],
                config={"kind": kind},
                num_workers=2,
                storage_path=directory,
                name=f"soak-{number}",
                warm=True,
                show=False,
                block=False,
            )
            if kind in ("stopped", "killed"):
                while len(run.history) < 10 or run.state != "training":
                    time.sleep(0.05)
            if kind == "stopped":
                run.stop()
            elif kind == "killed":
                os.kill(raynb.workers.status()["ranks"][1]["pid"], signal.SIGKILL)
            try:
                result = run.wait(120)
                assert result.state == ("stopped" if kind == "stopped" else "finished"), result
            except RaynbError:
                assert kind in ("raises", "killed"), kind
                result = run.result
            if kind == "plain":
                seconds.append(time.time() - began)
                results.append(result)
            while True:
                found = raynb.workers.status()
                if found["phase"] == "idle" and all(r["ready"] for r in found["ranks"]):
                    break
                time.sleep(0.05)
            if kind == "killed":
                started_at = number + 1
            held = sum(psutil.Process(r["pid"]).memory_info().rss for r in found["ranks"])
            memory.append((number, held, threading.active_count()))
            if number % 10 == 0 or kind != "plain":
                took = time.time() - began
                print(f"run {number:4} {kind:8} {took:6.2f} s  {held / 2**20:7.0f} MiB", flush=True)
        pids = [r["pid"] for r in raynb.workers.status()["ranks"]]
        raynb.workers.down()
        time.sleep(3)
        left = [p for p in pids if psutil.pid_exists(p)]
    same = results[0].return_value == results[-1].return_value
    # The first runs after a start import and warm up what stays.
    flat = [held for number, held, _ in memory if number >= started_at + 10]
    print(f"\nruns {runs}, restarts of the workers {found['restarts']}")
    print(f"last like first: {same} ({results[-1].return_value!r})")
    first, last = statistics.median(seconds[:20]), statistics.median(seconds[-20:])
    print(f"median seconds a plain run: first 20 {first:.3f}, last 20 {last:.3f}")
    growth = statistics.median(flat[-10:]) / statistics.median(flat[:10]) - 1
    print(f"memory of the workers: {growth:+.1%} over {len(flat)} runs (bar: 10 %)")
    print(f"threads of the kernel: {memory[0][2]} -> {memory[-1][2]}")
    print(f"processes left after down: {left}")


if __name__ == "__main__":
    main()
