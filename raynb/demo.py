"""``raynb demo``: the quickstart notebook run headless, with a live view in the terminal."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from raynb.errors import OptionError, StorageError
from raynb.results.text import plural

DATASETS = ("fashion-mnist", "digits")
DEFAULT_ROWS = 12_000
#: Where Debian's package dataset-fashion-mnist puts the four files.
DEBIAN_FILES = Path("/usr/share/datasets/fashion-mnist")
#: What torchvision reads under ``root/FashionMNIST/raw``.
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


# -- data ----------------------------------------------------------------------------------------


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "raynb"


def _complete(root: Path) -> bool:
    return all((root / "FashionMNIST" / "raw" / name).is_file() for name in FILES)


def fashion_mnist(data: str | os.PathLike[str] | None = None) -> str:
    """Find FashionMNIST, or get it.

    Parameters
    ----------
    data : path, optional
        A torchvision root that has it. By default Debian's ``dataset-fashion-mnist`` is unpacked
        into the user's cache, and where that package is not installed torchvision downloads it.

    Returns
    -------
    str
        A root for ``torchvision.datasets.FashionMNIST(root)``.

    Raises
    ------
    StorageError
        When it is nowhere and can't be downloaded.
    """
    if data is not None:
        root = Path(data).expanduser().absolute()
        if not _complete(root):
            raise StorageError(
                f"there is no FashionMNIST under {root}",
                hint=f"it needs {root}/FashionMNIST/raw with {', '.join(FILES)}",
            )
        return str(root)
    root = _cache()
    if _complete(root):
        return str(root)
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    if DEBIAN_FILES.is_dir():
        for name in FILES:
            # Unpacked aside and moved: two at once, or a full disk, leave no half file.
            part = raw / f"{name}.{os.getpid()}"
            with gzip.open(DEBIAN_FILES / f"{name}.gz") as packed, part.open("wb") as out:
                shutil.copyfileobj(packed, out)
            part.replace(raw / name)
        return str(root)
    try:
        from torchvision.datasets import FashionMNIST

        FashionMNIST(root, download=True)
    except Exception as error:
        raise StorageError(
            f"FashionMNIST is not on this machine and can't be downloaded: {error}",
            hint="install Debian's dataset-fashion-mnist, name a torchvision root, or use digits",
        ) from error
    return str(root)


def Digits(train: bool) -> Any:
    """scikit-learn's digits, 1,797 images of 8 x 8, as a torch dataset that needs no download.

    Parameters
    ----------
    train : bool
        The first 1,500 images, or the last 297.

    Returns
    -------
    TensorDataset of (float32 image, shape (1, 8, 8), in [0, 1]) and int64 label
    """
    import torch
    from torch.utils.data import TensorDataset

    images, labels = _digits()
    part = slice(0, 1500) if train else slice(1500, None)
    pixels = torch.tensor(images[part], dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(pixels, torch.tensor(labels[part]))


def _digits() -> tuple[Any, Any]:
    """Images and labels, from the file that scikit-learn brings.

    Importing scikit-learn to read one file would cost each rank a second and 70 MB.
    """
    import importlib.util

    import numpy as np

    found = importlib.util.find_spec("sklearn")
    home = Path((found and found.origin) or "").parent
    file = home / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


# -- notebook ------------------------------------------------------------------------------------

_INTRO = """# Quickstart: train on a Ray worker group from a cell

The cell below is an ordinary PyTorch loop with Ray Train's four calls in it. `%%distributed_train`
ships it to {workers} and shows what each of them is doing while it trains."""

_NOTE = """

With Ray around it, one worker is what fits into the 2 GB of a free Binder session; a second one
(`-n 2`) takes 400 MB more."""

_DATA = {
    "fashion-mnist": """from raynb.demo import fashion_mnist

# Debian's dataset-fashion-mnist, a torchvision root of yours, or a download
data_root = fashion_mnist({data})""",
    "digits": """from raynb.demo import Digits""",
}

_LOAD = {
    "fashion-mnist": (
        """from torchvision.datasets import FashionMNIST
from torchvision.transforms import Compose, Normalize, ToTensor
""",
        """transform = Compose([ToTensor(), Normalize((0.286,), (0.353,))])
train_data = FashionMNIST(data_root, train=True, transform=transform)
test_data = FashionMNIST(data_root, train=False, transform=transform)
""",
    ),
    "digits": (
        "",
        """train_data, test_data = Digits(train=True), Digits(train=False)
""",
    ),
}

_RESNET = (
    "from torchvision.models import resnet18\n",
    """model = resnet18(num_classes=10)
model.conv1 = torch.nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)  # grey images
""",
)
#: For digits where memory is little: neither torchvision nor 11 million weights.
_CNN = (
    "",
    """model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10),
)
""",
)

_TRAIN = """%%distributed_train -n {workers} --config config --best accuracy:max{where}
import os, tempfile

import ray.train, ray.train.torch, raynb, torch
from torch.utils.data import DataLoader, Subset
{imports}
{model}model = ray.train.torch.prepare_model(model)
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
criterion = torch.nn.CrossEntropyLoss()

{load}if config["rows"]:
    train_data = Subset(train_data, range(min(config["rows"], len(train_data))))
    test_data = Subset(test_data, range(min(config["rows"] // 6, len(test_data))))
train_loader = DataLoader(train_data, batch_size=config["batch_size"], shuffle=True)
test_loader = DataLoader(test_data, batch_size=256)
train_loader = ray.train.torch.prepare_data_loader(train_loader)
test_loader = ray.train.torch.prepare_data_loader(test_loader)

for epoch in range(config["epochs"]):
    if ray.train.get_context().get_world_size() > 1:
        train_loader.sampler.set_epoch(epoch)
    model.train()
    for images, labels in train_loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        raynb.log({{"loss": loss}})  # every step of every rank, without waiting

    model.eval()
    right = seen = 0
    with torch.no_grad():
        for images, labels in test_loader:
            right += (model(images).argmax(1) == labels).sum().item()
            seen += len(labels)
    metrics = {{"loss": loss.item(), "accuracy": right / seen, "epoch": epoch}}
    with tempfile.TemporaryDirectory() as directory:
        state = getattr(model, "module", model).state_dict()
        torch.save(state, os.path.join(directory, "model.pt"))
        checkpoint = ray.train.Checkpoint.from_directory(directory)
        ray.train.report(metrics, checkpoint=checkpoint)
    print(f"epoch {{epoch}}: {{metrics}}")"""

_AFTER = (
    ("markdown", "The result is a `ray.train.Result` with every record of every rank on top:"),
    ("code", "result.history.groupby(\"rank\").tail(1)"),
    ("code", "result.best_checkpoints[0][1], result.path"),
)  # fmt: skip


def build_notebook(
    *,
    dataset: str = "fashion-mnist",
    workers: int = 2,
    epochs: int = 2,
    rows: int | None = DEFAULT_ROWS,
    name: str = "",
    storage_path: str = "",
    data: str | None = None,
    small: bool = False,
) -> Any:
    """The quickstart as a notebook, not yet run.

    Parameters
    ----------
    dataset : str
        ``fashion-mnist`` or ``digits``.
    workers, epochs : int
    rows : int or None
        Training rows to use; None for all.
    name, storage_path : str
        Of the run.
    data : str, optional
        A torchvision root with FashionMNIST.
    small : bool
        A small network for digits instead of ResNet-18, for machines with little memory.

    Returns
    -------
    nbformat.NotebookNode
    """
    import nbformat.v4 as v4

    imports, load = _LOAD[dataset]
    more, model = _CNN if small else _RESNET
    config = {"lr": 1e-2 if small else 1e-3, "batch_size": 128, "epochs": epochs, "rows": rows}
    # Without a name the run gets one made from the time, so that the cell can be run again.
    where = f" --name {name}" if name else ""
    where += f" --storage-path {json.dumps(storage_path)}" if storage_path else ""
    train = _TRAIN.format(
        workers=workers, where=where, imports=imports + more, load=load, model=model
    )
    cells = [
        v4.new_markdown_cell(
            _INTRO.format(workers=plural(workers, "worker")) + (_NOTE if small else "")
        ),
        v4.new_code_cell("%load_ext raynb"),
        v4.new_code_cell(
            _DATA[dataset].format(data=repr(data) if data else "") + f"\nconfig = {config}"
        ),
        v4.new_code_cell(train),
    ]
    for kind, text in _AFTER:
        cells.append(v4.new_markdown_cell(text) if kind == "markdown" else v4.new_code_cell(text))
    for number, cell in enumerate(cells):
        cell["id"] = f"quickstart-{number}"  # the same each time: a re-run shows as no change
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return v4.new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )


# -- the command ---------------------------------------------------------------------------------


def run_demo(
    *,
    workers: int = 2,
    epochs: int = 2,
    limit: int | None = None,
    dataset: str | None = None,
    data: str | None = None,
    json_output: bool = False,
    out: str | None = None,
) -> int:
    """Run the quickstart notebook headless.

    Parameters
    ----------
    workers, epochs : int
    limit : int, optional
        Training rows, 0 for all; by default as many as end within minutes on two cores.
    dataset : str, optional
        By default FashionMNIST where it can be had, else digits.
    data : str, optional
        A torchvision root with FashionMNIST.
    json_output : bool
        Print one JSON object as the last line of stdout.
    out : str, optional
        Directory for notebook, HTML and the run; by default a new one under ``runs/``.

    Returns
    -------
    int
        0 when the run finished, 1 when it failed.
    """
    began = time.time()
    for option, value in (("--workers", workers), ("--epochs", epochs)):
        if value < 1:
            raise OptionError(f"{option} must be at least 1, not {value}")
    if limit is not None and limit < 0:
        raise OptionError(f"--limit must be 0 (all) or more, not {limit}")
    rows = DEFAULT_ROWS if limit is None else limit or None
    dataset, root = _choose(dataset, data)
    name = time.strftime("demo-%Y%m%d-%H%M%S")
    directory = Path(out or Path("runs") / name).expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True)
    notebook = build_notebook(
        dataset=dataset,
        workers=workers,
        epochs=epochs,
        rows=rows,
        name=name,
        storage_path=str(directory),
        data=root,
    )
    stream = sys.stderr if json_output else sys.stdout
    print(
        f"raynb demo: ResNet-18 on {dataset}, {workers} workers; output in {directory}",
        file=stream,
        flush=True,
    )

    error = _execute_watched(notebook, name, directory, stream)
    notebook_path, html_path = _save(notebook, directory)
    summary = {
        **_summary(directory, name),
        "dataset": dataset,
        "num_workers": workers,
        "notebook": str(notebook_path),
        "html": str(html_path),
        "seconds": round(time.time() - began, 1),
    }
    _print_end(summary, error, stream)
    if json_output:
        print(json.dumps(summary), flush=True)
    return 0 if summary["state"] == "finished" and error is None else 1


def _choose(dataset: str | None, data: str | None) -> tuple[str, str | None]:
    if dataset not in (None, *DATASETS):
        raise OptionError(f"--dataset must be one of {', '.join(DATASETS)}, not {dataset!r}")
    if dataset == "digits":
        return dataset, None
    try:
        return "fashion-mnist", fashion_mnist(data)
    except StorageError as error:
        if dataset == "fashion-mnist" or data is not None:
            raise
        print(f"raynb demo: {error.message}; using scikit-learn's digits", file=sys.stderr)
        return "digits", None


def _execute_watched(notebook: Any, name: str, directory: Path, stream: Any) -> str | None:
    """Execute the notebook in a kernel while this terminal watches its run; returns the error."""
    import nbclient
    import ray

    from raynb._ray import cluster

    if not cluster.connect():
        cluster.start_local()
    # The kernel joins this process's cluster, so that both see the same supervisor.
    env = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    client = nbclient.NotebookClient(
        notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": os.getcwd()}}
    )
    failure: list[str] = []

    def execute() -> None:
        try:
            # The kernel's own stderr is Ray's chatter at its end; what matters is in the notebook.
            with (directory / "kernel.log").open("w") as log:
                client.execute(env=env, stdout=log, stderr=log)
        except nbclient.exceptions.CellExecutionError as error:
            failure.append(str(error))
        except Exception as error:
            failure.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=execute, name="raynb-demo-notebook", daemon=True)
    thread.start()
    try:
        _watch(name, thread, stream)
        thread.join()
    except KeyboardInterrupt:
        print("stopping the run …", file=stream)
        with contextlib.suppress(Exception):
            from raynb.engine.run import find_backend

            backend = find_backend(name)
            if backend is not None:
                backend.stop()
        thread.join(30)
        failure.append("interrupted")
    return failure[0] if failure else None


def _watch(name: str, notebook: threading.Thread, stream: Any) -> None:
    """Show the run in the terminal while the notebook executes."""
    from raynb.engine.collector import TERMINAL
    from raynb.engine.run import find_backend
    from raynb.panel.terminal import TerminalView
    from raynb.telemetry.mirror import Mirror

    mirror, backend = Mirror(), None
    mirror.run = {
        **mirror.run,
        "name": name,
        "blocking": True,
        "message": "starting the notebook's kernel",
    }
    view = TerminalView(stream)
    view.open(mirror)
    try:
        while notebook.is_alive() and mirror.run["state"] not in TERMINAL:
            try:
                if backend is None:
                    backend = find_backend(name)
                    time.sleep(0.2)
                    continue
                mirror.apply(backend.poll("demo", 0.5))
                view.update(mirror)
            except Exception:
                break  # the supervisor is gone; the notebook tells how it ended
            time.sleep(0.1)
        if backend is not None:
            with contextlib.suppress(Exception):
                backend.release("demo")
    finally:
        view.close(mirror, "")


def _save(notebook: Any, directory: Path) -> tuple[Path, Path]:
    import nbformat
    from nbconvert import HTMLExporter

    path = directory / "quickstart.ipynb"
    nbformat.write(notebook, path)
    html, _ = HTMLExporter().from_notebook_node(notebook)
    html_path = path.with_suffix(".html")
    html_path.write_text(html, encoding="utf-8")
    return path, html_path


def _summary(directory: Path, name: str) -> dict[str, Any]:
    """What the run left on storage, as the demo's JSON."""
    import pyarrow.fs as pafs
    import ray.train

    from raynb.engine.spec import RAYNB_DIR, read_record
    from raynb.telemetry.history import read_history, to_frame

    run_dir, local = f"{directory}/{name}", pafs.LocalFileSystem()
    record = read_record(local, run_dir) or {}
    history = to_frame(read_history(local, f"{run_dir}/{RAYNB_DIR}/history"))
    metrics = checkpoint = None
    with contextlib.suppress(Exception):
        result = ray.train.Result.from_path(run_dir)
        metrics = result.metrics
        checkpoint = result.checkpoint.path if result.checkpoint else None
    submitted = record.get("submitted")
    first = float(history["time"].min()) if len(history) else None
    return {
        "state": record.get("state", "failed"),
        "ranks": sorted(int(r) for r in history["rank"].unique()),
        "history_rows": len(history),
        "metrics": metrics,
        "checkpoint": checkpoint,
        "path": run_dir,
        "seconds_to_first_step": (
            round(first - submitted, 2) if first is not None and submitted else None
        ),
    }


def _print_end(summary: dict[str, Any], error: str | None, stream: Any) -> None:
    if error is not None:
        print(error, file=sys.stderr)
    print(
        f"\n{summary['state']}: {summary['history_rows']} records of ranks {summary['ranks']}, "
        f"metrics {summary['metrics']}\n"
        f"  run       {summary['path']}\n"
        f"  notebook  {summary['notebook']}\n"
        f"  HTML      {summary['html']}\n"
        f"  first step after {summary['seconds_to_first_step']} s, all after "
        f"{summary['seconds']} s",
        file=stream,
        flush=True,
    )


__all__ = ["Digits", "build_notebook", "fashion_mnist", "run_demo"]
