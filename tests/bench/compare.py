"""raynb beside its peers: the same small network and data, each in a real kernel, as its docs say.

Run by hand, in raynb's environment::

    python tests/bench/compare.py --env nbdistributed=PYTHON --env ipyparallel=PYTHON \\
        --env accelerate=PYTHON [--keep FILE]

It measures every peer once and writes the table of ``docs/comparison.md``, which tells what the
rows are and how to make the environments. ``--only PEER --keep FILE`` measures one, about three
minutes, and adds it to a JSON file; ``--table --keep FILE`` writes the table from what is there,
medians where a peer was measured several times. What each peer runs is in ``tests/bench/peers``.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil
from compare_kernel import PEERS_DIR, RANKS, Kernel, end, memory, merge_streams

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
MARKERS = ("<!-- table: begin -->", "<!-- table: end -->")
ROWS = 12_800  # 100 steps of each rank in an epoch
STEPS = 100
FLOOD = 1_000
FAIL_AT = 8
STOP_AT = 8
WRONG = "label out of range"
#: Seconds until the cell with the exception is interrupted on ranks that are up already, where
#: nbdistributed gives up by itself after 30; and on ranks that have to start first.
HANGS, HANGS_FRESH = 45, 100


@dataclass(frozen=True)
class Peer:
    """One way to train from a notebook."""

    title: str
    package: str
    script: str
    more: str = ""  #: a cell before the train cell
    own_steps: int = STEPS  #: of the run that logs in the peer's own way
    lasting: bool = False  #: its ranks stay between cells
    #: It says that its ranks are there before they are: a cell sent by then is lost.
    early: bool = False


PEERS = {
    "torchtrainer": Peer("bare `TorchTrainer`", "ray", "torchtrainer.ipy", own_steps=15),
    "nbdistributed": Peer(
        "nbdistributed", "nbdistributed", "nbdistributed.ipy", lasting=True, early=True
    ),
    "ipyparallel": Peer("ipyparallel with DDP", "ipyparallel", "ipyparallel.ipy", lasting=True),
    "accelerate": Peer("accelerate `notebook_launcher`", "accelerate", "accelerate.ipy"),
    "raynb": Peer("raynb", "raynb", "raynb.ipy"),
    "raynb-warm": Peer(
        "raynb, warm workers", "raynb", "raynb.ipy", "%raynb workers up -n 2", lasting=True
    ),
}


# -- the scripts ---------------------------------------------------------------------------------


def cells_of(peer: Peer) -> tuple[list[str], str]:
    """The cells that come first, and the one that trains."""
    text = (PEERS_DIR / peer.script).read_text(encoding="utf-8")
    cells = [cell.strip("\n") for cell in re.split(r"^# %%\n", text, flags=re.MULTILINE)[1:]]
    more = [peer.more] if peer.more else []
    return [*cells[:-1], *more], cells[-1]


def edited(
    cell: str,
    run: str,
    *,
    steps: int = STEPS,
    epochs: int = 1,
    printed: bool = False,
    fails: bool = False,
    floods: bool = False,
) -> str:
    """The train cell with what is measured in its loop; no two are the same."""
    cell = cell.replace("EPOCHS, LR = 1,", f"EPOCHS, LR = {epochs},")
    lines = cell.split("\n")
    at = next(k for k, line in enumerate(lines) if line.strip() == "optimizer.step()")
    pad = lines[at].partition("optimizer")[0]
    log = lines[at + 1].strip()
    if printed:
        log = 'print(f"epoch {epoch} loss {loss.item():.3f}")'
    new = [f"n = __import__('compare_ticks').tick({run!r})"]
    if fails:
        new.append(f"assert n < {FAIL_AT} or torch.distributed.get_rank() != 1, {WRONG!r}")
    if floods:
        new.append(f"for k in range({FLOOD} * (n == 1)): print(f'line {{k}} of a flood')")
    new.append(log)
    if epochs == 1:
        new.append(f"if n >= {steps}: break")
    lines[at + 1 : at + 2] = [pad + line for line in new]
    return "\n".join(lines)


def changed_lines(peer: Peer) -> tuple[int, int]:
    """Lines that the peer's script adds to the plain one, and that it removes; not indentation."""

    def lines(text: str) -> list[str]:
        kept = (line.partition("  # fmt")[0].strip() for line in text.split("\n"))
        return [line for line in kept if line and line != "# %%"]

    before = lines((PEERS_DIR / "plain.py").read_text(encoding="utf-8"))
    first, train = cells_of(peer)
    after = lines("\n".join([*first, train]))
    diff = list(difflib.ndiff(before, after))
    return sum(d[0] == "+" for d in diff), sum(d[0] == "-" for d in diff)


# -- what is measured ----------------------------------------------------------------------------


def measure(
    peer: Peer, python: str, directory: Path, keep: Path | None, found: dict[str, Any]
) -> None:
    """Fill in one round of one peer, in two kernels."""
    first, train = cells_of(peer)
    for part in (training, failing):
        kernel = Kernel(python, directory)
        try:
            with kernel:
                began = time.time()
                for cell in first:
                    ran = kernel.run(cell)
                    if ran.failed:
                        raise RuntimeError(f"{cell.splitlines()[0]}: {ran.text().strip()[-300:]}")
                if peer.early:
                    kernel.wait_for_connections()
                part(kernel, peer, train, began, found)
            if part is training:
                time.sleep(5)
                found["after_kernel"] = memory(kernel.left())
        finally:
            end(kernel.left())
            if keep is not None:
                name = f"{peer.package}-{'warm-' if peer.more else ''}{part.__name__}.ipynb"
                nbformat.write(kernel.notebook, keep / name)


def training(kernel: Kernel, peer: Peer, train: str, began: float, found: dict[str, Any]) -> None:
    """From a fresh kernel on: first step, again, rates, a flood of output, a stop, once more."""
    ran = kernel.run(edited(train, "cold", steps=peer.own_steps))
    first = kernel.first_step("cold")
    if first is None:
        raise RuntimeError(f"no step: {ran.text().strip()[-600:]}")
    found["cold"] = first - began
    found["rate_own"] = kernel.rate("cold", peer.own_steps)

    ran = kernel.run(edited(train, "again", printed=True))
    first = kernel.first_step("again")
    found["again"] = None if first is None else first - ran.began
    found["rate_printed"] = kernel.rate("again", STEPS)

    ran = kernel.run(edited(train, "flood", steps=3, floods=True))
    cell = kernel.notebook.cells[-1]
    merge_streams(cell.outputs)
    found["bytes"] = len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])))
    shown = re.findall(r"line \d+ of a flood", json.dumps(cell.outputs))
    found["lines_shown"] = min(len(shown), RANKS * FLOOD)

    def under_way() -> bool:
        ranks = kernel.steps("stop")
        return len(ranks) == RANKS and min(map(len, ranks)) >= STOP_AT

    ran = kernel.run(edited(train, "stop", epochs=1_000), when=under_way)
    if ran.interrupted is None or len(kernel.steps("stop")) < RANKS:
        raise RuntimeError(f"no run to be stopped: {ran.text().strip()[-600:]}")
    found["stop_cell"] = None if ran.died else ran.ended - ran.interrupted
    found["stop_lines"] = _lines(ran.text())
    time.sleep(10)
    last = max(r[-1] for r in kernel.steps("stop"))
    goes_on = time.time() - last < 2
    found["stop_steps"] = None if goes_on else max(0.0, last - ran.interrupted)
    found["after_stop"] = memory(kernel.left())

    found["next_after_stop"] = None if ran.died else _next(kernel, peer, train)


def failing(kernel: Kernel, peer: Peer, train: str, began: float, found: dict[str, Any]) -> None:
    """One rank raises while the other goes into the next collective."""
    cell = edited(train, "fails", fails=True, epochs=1_000)
    ran = kernel.run(cell, patience=HANGS if peer.lasting else HANGS_FRESH)
    raised = max((r[FAIL_AT - 1] for r in kernel.steps("fails") if len(r) >= FAIL_AT), default=None)
    text = ran.text()
    line = 1 + cell.split("\n").index(next(s for s in cell.split("\n") if WRONG in s))
    below = line - (1 if cell.startswith("%%") else 0)
    found["error_s"] = None if ran.interrupted or raised is None else ran.ended - raised
    found["error_lines"] = _lines(text)
    shown = WRONG in text
    found["error_shown"] = shown
    found["error_rank"] = shown and bool(re.search(r"(?i)rank\W{0,9}1\b|\[1:|\[1\]|rank1\]", text))
    found["error_line"] = (
        "no" if not shown
        else "its text" if "get_rank() != 1" in text
        else "its number" if re.search(rf"line {line}\b|line {below}\b", text)
        else "no"
    )  # fmt: skip
    found["error_fails"] = any(o["output_type"] == "error" for o in ran.outputs)
    found["next_after_error"] = None if ran.died else _next(kernel, peer, train)


def _next(kernel: Kernel, peer: Peer, train: str) -> float | None:
    """Seconds to the first step of the same cell afterwards; None where it does not train."""
    ran = kernel.run(edited(train, "next", steps=3), patience=15 if peer.lasting else 60)
    first = kernel.first_step("next")
    return None if first is None or ran.failed else first - ran.began


def _lines(text: str) -> int:
    """Lines that are not what the training itself prints."""
    lines = text.split("\n")
    return sum(bool(s.strip()) and not re.search(r"epoch \d+ loss", s) for s in lines)


def versions(python: str, package: str) -> dict[str, str]:
    """Of the packages that matter; raises where the peer is not installed."""
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {n: m.version(n) for n in (sys.argv[1], 'torch', 'ipykernel')}\n"
        "print(json.dumps(found | {'Python': platform.python_version()}))"
    )
    done = subprocess.run([python, "-c", code, package], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it does not start"])[-1])
    return json.loads(done.stdout)


def save_data(path: Path) -> str:
    """The images that all train on; gives their name."""
    import torch

    from raynb.demo import Digits, fashion_mnist
    from raynb.errors import StorageError

    try:
        root = fashion_mnist()
    except StorageError:
        data = Digits(train=True)
        images, labels = data.tensors
        times = -(-ROWS // len(labels))
        images, labels, name = images.repeat(times, 1, 1, 1), labels.repeat(times), "digits"
    else:
        from torchvision.datasets import FashionMNIST

        data = FashionMNIST(root)
        images, labels, name = data.data.unsqueeze(1) / 255, data.targets, "FashionMNIST"
    torch.save((images[:ROWS].clone(), labels[:ROWS].clone()), path)
    return name


def machine() -> str:
    """This one, in plain words."""
    cores, memory = psutil.cpu_count(), round(psutil.virtual_memory().total / 2**30)
    gpu = "a GPU that is not used" if shutil.which("nvidia-smi") else "no GPU"
    return f"{cores} cores, {memory} GB, {gpu}"


# -- the table -----------------------------------------------------------------------------------


def seconds(value: float | None, otherwise: str) -> str:
    if value is None:
        return otherwise
    return "at once" if value < 0.005 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def processes(value: list[float]) -> str:
    return f"{value[0]:.0f}, {value[1]:,.0f} MB" if value[0] else "none"


ROWS_OF_TABLE: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("new kernel to first step", lambda f: seconds(f["cold"], "none")),
    ("edited cell again to first step", lambda f: seconds(f["again"], "none")),
    ("steps a second, logged its own way", lambda f: _rate(f["rate_own"])),
    ("steps a second, every rank prints", lambda f: _rate(f["rate_printed"])),
    ("interrupt: the cell has ended after", lambda f: seconds(f["stop_cell"], "never")),
    ("interrupt: last step of a rank after", lambda f: seconds(f["stop_steps"], "goes on")),
    ("lines shown at the interrupt", lambda f: f"{f['stop_lines']:.0f}"),
    ("processes 10 s after the interrupt", lambda f: processes(f["after_stop"])),
    ("the cell again after the interrupt", lambda f: seconds(f["next_after_stop"], "fails")),
    ("processes after the kernel's end", lambda f: processes(f["after_kernel"])),
    ("exception on rank 1: the cell has ended after", lambda f: seconds(f["error_s"], "hangs")),
    ("it is shown", lambda f: "yes" if f["error_shown"] else "no"),
    ("lines that it takes", lambda f: f"{f['error_lines']:.0f}" if f["error_shown"] else "–"),
    ("it names the rank", lambda f: "yes" if f["error_rank"] else "no"),
    ("it names the cell's line", lambda f: f["error_line"]),
    (
        "the cell counts as failed",
        lambda f: "–" if f["error_s"] is None else "yes" if f["error_fails"] else "no",
    ),
    ("the cell again after the exception", lambda f: seconds(f["next_after_error"], "fails")),
    ("notebook after 2 x 1,000 printed lines", lambda f: f"{f['bytes'] / 1000:.0f} kB"),
    ("of them in the notebook", lambda f: f"{f['lines_shown']:,.0f}"),
)


def _rate(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Each figure's median; of words the last round's."""
    merged = dict(rounds[-1])
    for name, value in rounds[-1].items():
        values = [r[name] for r in rounds if r.get(name) is not None]
        if name in ("after_stop", "after_kernel"):
            merged[name] = [statistics.median(v[k] for v in values) for k in (0, 1)]
        elif isinstance(value, float) or (value is None and len(values) > len(rounds) / 2):
            merged[name] = statistics.median(values)
    return merged


def table(kept: dict[str, Any]) -> Iterator[str]:
    """The part of the page between the markers."""
    peers = [(p, kept["peers"].get(name, {})) for name, p in PEERS.items()]
    yield f"Measured on {kept['date']} on a machine with {kept['machine']}; {kept['data']}, {RANKS}"
    yield "ranks. Medians where a column has several rounds."
    yield ""
    yield "| | " + " | ".join(p.title for p, _ in peers) + " |"
    yield "| --- |" + " --- |" * len(peers)

    def row(title: str, cells: Iterator[str]) -> str:
        return f"| {title} | " + " | ".join(cells) + " |"

    def version(peer: Peer, value: dict[str, Any]) -> str:
        return f"{peer.package} {value['versions'][peer.package]}" if "versions" in value else ""

    def cell(show: Callable[[dict[str, Any]], str], value: dict[str, Any]) -> str:
        try:
            return show(median(value["rounds"]))
        except KeyError:  # it was not measured, or did not get there
            return ""

    yield row("version", (version(p, v) for p, v in peers))
    for title, show in ROWS_OF_TABLE:
        yield row(title, (cell(show, v) for _, v in peers))
    yield row(
        "lines added to and removed from the plain script",
        ("+{} −{}".format(*changed_lines(p)) for p, _ in peers),
    )
    yield row("rounds", (f"{len(v.get('rounds', []))}" for _, v in peers))
    yield ""
    common = next((v["versions"] for _, v in peers if "versions" in v), {})
    named = {p.package for p, _ in peers}
    yield "All with " + ", ".join(f"{n} {v}" for n, v in common.items() if n not in named) + "."
    for peer, value in peers:
        if "reason" in value or not value.get("rounds"):
            yield ""
            yield f"Not run to the end: {peer.title}: {value.get('reason', 'not asked for')}."


def write_page(kept: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(MARKERS[0])
    tail = rest.split(MARKERS[1])[1]
    text = "\n".join(table(kept))
    PAGE.write_text(f"{head}{MARKERS[0]}\n{text}\n{MARKERS[1]}{tail}", encoding="utf-8")
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--env", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument(
        "--only", choices=PEERS, action="append", help="measure this one; the page stays as it is"
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="JSON that measurements add to")
    parser.add_argument("--notebooks", type=Path, metavar="DIR", help="where to keep what was run")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the page")
    args = parser.parse_args()
    kept: dict[str, Any] = {"peers": {}}
    if args.keep is not None and args.keep.exists():
        kept = json.loads(args.keep.read_text())
    if args.table:
        write_page(kept)
        return
    # Its kernels, and what runs below them, end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pythons = dict(pair.split("=", 1) for pair in args.env)
    if args.notebooks is not None:
        args.notebooks.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        kept["data"] = save_data(Path(directory, "data.pt"))
        kept |= {"date": time.strftime("%Y-%m-%d"), "machine": machine()}
        for name in args.only or PEERS:
            peer, began = PEERS[name], time.time()
            entry = kept["peers"].setdefault(name, {})
            own = peer.package in ("ray", "raynb")
            python = pythons.get(name, sys.executable if own else "")
            found: dict[str, Any] = {}
            try:
                if not python:
                    raise RuntimeError(f"no --env {name}=PYTHON was given")
                entry["versions"] = versions(python, peer.package)
                measure(peer, python, Path(directory), args.notebooks, found)
            except Exception as error:  # what was found until then is shown
                entry["reason"] = " ".join(str(error).split()).replace("|", "/")
                print(f"{name}: {entry['reason']}", flush=True)
            finally:  # also when it is ended in between
                if found:
                    entry.setdefault("rounds", []).append(found)
                print(f"{name}: {time.time() - began:.0f} s, {json.dumps(found)}", flush=True)
                if args.keep is not None:
                    args.keep.write_text(json.dumps(kept, indent=1))
    if not args.only:
        write_page(kept)


if __name__ == "__main__":
    main()
