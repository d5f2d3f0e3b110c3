"""RunSpec: everything a run needs, checked before anything starts."""

from __future__ import annotations

import difflib
import json
import math
import numbers
import os
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from raynb.errors import OptionError, StorageError
from raynb.telemetry.events import clean_text, short_text

PLACEMENT_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
BACKENDS = ("nccl", "gloo")
#: Where raynb keeps what is its own inside a run's directory.
RAYNB_DIR = "raynb"


@dataclass
class RunSpec:
    """One run's options, with their defaults.

    Attributes
    ----------
    name : str
        Directory of the run under ``storage_path``; made from the time when not given.
    num_workers : int or (int, int)
        Workers, or the least and most of an elastic run; 0 runs in this process (local mode).
    use_gpu : bool or None
        None takes GPUs when the cluster has enough of them.
    resources_per_worker : dict of str to float
        Ray's resources for each worker, on top of its CPU or GPU.
    placement_strategy : str
        One of ``PACK``, ``SPREAD``, ``STRICT_PACK``, ``STRICT_SPREAD``.
    accelerator_type : str or None
        As Ray names it, such as ``A100``.
    config : dict or None
        What the train function gets.
    storage_path : str
        Absolute local path, or a URI that pyarrow knows.
    max_failures : int
        Restarts of the worker group from the latest checkpoint; -1 for no limit.
    num_to_keep : int or None
        Checkpoints to keep.
    best : (str, str) or None
        Metric and ``min`` or ``max``: orders the checkpoints and marks the best value.
    resume : RunResult, ray.train.Checkpoint, str or None
        Where ``raynb.resume`` goes on from at the run's start; a checkpoint once it is checked.
    datasets : dict of str to ray.data.Dataset
    backend : str or None
        torch.distributed's backend: ``nccl`` or ``gloo``; None lets Ray choose.
    timeout_s : int or None
        Seconds a collective may take before it fails; None is Ray's default of 1,800.
    env : dict of str to str
        Environment variables of the workers.
    warm : bool or None
        Whether it has to run on the warm workers, or may not; None: where they are up and fit.
    """

    name: str = ""
    num_workers: int | tuple[int, int] = 1
    use_gpu: bool | None = None
    resources_per_worker: dict[str, float] = field(default_factory=dict)
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    config: dict[str, Any] | None = None
    storage_path: str = ""
    max_failures: int = 0
    num_to_keep: int | None = None
    best: tuple[str, str] | None = None
    resume: Any = None
    datasets: dict[str, Any] = field(default_factory=dict)
    backend: str | None = None
    timeout_s: int | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)  # values may be secrets
    warm: bool | None = None

    #: What names that are made from the time start with.
    name_prefix = "train"

    @property
    def local(self) -> bool:
        return self.num_workers == 0

    @property
    def min_workers(self) -> int:
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of one worker, as Ray Train will ask for them."""
        bundle = dict(self.resources_per_worker)
        if self.use_gpu:
            bundle.setdefault("GPU", 1.0)
        if not bundle.get("GPU"):
            bundle.setdefault("CPU", 1.0)
        return bundle

    @property
    def run_path(self) -> str:
        return join_storage(self.storage_path, self.name)

    def check(self) -> RunSpec:
        """Check and complete the spec.

        Returns
        -------
        RunSpec
            Itself, with name and absolute storage path filled in.

        Raises
        ------
        OptionError
            An option has a value that can't be used.
        CheckpointError
            There is no checkpoint to resume from.
        StorageError
            The storage can't be written, or the name belongs to a finished run.
        """
        self._check_workers()
        self._check_choices()
        self._check_config()
        self.storage_path = absolute_storage(self.storage_path or default_storage())
        self.name = str(self.name or _name_from_time(self.storage_path, self.name_prefix))
        # At least one character that is no dot, so that it is neither "." nor "..".
        if not re.fullmatch(r"(?!\.*$)[\w.-][\w. -]{,199}", self.name):
            raise OptionError(
                f"the name {self.name!r} can't be a directory's name",
                hint="use at most 200 letters, digits, spaces, '-', '_' and '.'",
            )
        if self.resume is not None:
            from raynb.engine.resume import checkpoint_to_resume

            self.resume = checkpoint_to_resume(self.resume)
        check_storage(self.storage_path, self.name)
        return self

    def _check_workers(self) -> None:
        n = self.num_workers
        if isinstance(n, bool) or not isinstance(n, (int, tuple)):
            raise OptionError(f"num_workers must be a number or (min, max), not {n!r}")
        if isinstance(n, tuple):
            if len(n) != 2 or not all(_is_whole(k) for k in n) or not 1 <= n[0] <= n[1]:
                raise OptionError(
                    f"an elastic group needs 1 <= min <= max, not {n!r}", hint="for example -n 1:4"
                )
        elif n < 0:
            raise OptionError(f"num_workers must not be negative: {n}")
        for name, amount in self.resources_per_worker.items():
            number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
            if not number or not 0 <= amount < math.inf:
                raise OptionError(f"resource {name!r} must be a number of at least 0: {amount!r}")
            if name == "GPU" and amount > 1 and amount % 1:
                raise OptionError(f"above one GPU a worker gets whole GPUs, not {amount}")
        if self.use_gpu is False and self.resources_per_worker.get("GPU"):
            raise OptionError(
                "--no-gpu and a GPU in the resources contradict each other",
                hint="leave out one of them",
            )

    def _check_choices(self) -> None:
        _choice("placement strategy", self.placement_strategy, PLACEMENT_STRATEGIES)
        if self.backend is not None:
            _choice("backend", self.backend, BACKENDS)
        if self.best is not None:
            if isinstance(self.best, str) or len(self.best) != 2:
                raise OptionError(
                    f"best must be a metric and min or max, not {self.best!r}",
                    hint='for example best=("accuracy", "max")',
                )
            metric, mode = self.best
            _choice("mode of --best", mode, ("min", "max"))
            if not metric:
                raise OptionError("--best needs a metric", hint="for example --best accuracy:max")
        if not _is_whole(self.max_failures, -1):
            raise OptionError(
                f"max_failures must be -1 (no limit), 0 or more: {self.max_failures!r}"
            )
        if self.num_to_keep is not None and not _is_whole(self.num_to_keep, 1):
            raise OptionError(f"num_to_keep must be at least 1: {self.num_to_keep!r}")
        if self.timeout_s is not None and not _is_whole(self.timeout_s, 1):
            raise OptionError(f"timeout_s must be at least 1 second: {self.timeout_s!r}")
        for key, text in self.env.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", str(key)):
                raise OptionError(f"{key!r} is no name of an environment variable")
            if not isinstance(text, str):
                # Its value is not shown: it may be a secret.
                raise OptionError(f"env[{key!r}] must be text, not {type(text).__name__}")
        for name, dataset in self.datasets.items():
            if not hasattr(dataset, "iterator") and not callable(dataset):
                raise OptionError(
                    f"dataset {name!r} is a {type(dataset).__name__}, not a ray.data.Dataset",
                    hint="make one, for example with ray.data.from_torch(...)",
                )

    def _check_config(self) -> None:
        if self.config is None:
            return
        if not isinstance(self.config, dict):
            raise OptionError(
                f"config must be a dict, not {type(self.config).__name__}",
                hint='for example config = {"lr": 1e-3, "batch_size": 128}',
            )
        from ray import cloudpickle

        bad = []
        for key, value in self.config.items():
            try:
                cloudpickle.dumps(value)
            except Exception as error:
                bad.append(f"  config[{key!r}] ({type(value).__name__}): {error}")
        if bad:
            raise OptionError(
                "config can't be sent to the workers",
                detail="\n".join(bad),
                hint="create these inside the cell",
                topic="unpicklable",
            )

    def summary(self) -> dict[str, Any]:
        """The spec as JSON for the record; environment values are masked, they may be secrets."""
        n = self.num_workers
        return {
            "name": self.name,
            "num_workers": n if isinstance(n, int) else f"{n[0]}:{n[1]}",
            "use_gpu": self.use_gpu,
            "resources_per_worker": self.bundle if not self.local else {},
            "placement_strategy": self.placement_strategy,
            "accelerator_type": self.accelerator_type,
            "config": None if self.config is None else json_safe(self.config),
            "storage_path": without_secrets(self.storage_path),
            "max_failures": self.max_failures,
            "num_to_keep": self.num_to_keep,
            "best": None if self.best is None else ":".join(self.best),
            "resume": None
            if self.resume is None
            else address_on(self.resume.filesystem, str(self.resume.path)),
            "datasets": sorted(self.datasets),
            "backend": self.backend,
            "timeout_s": self.timeout_s,
            "env": dict.fromkeys(self.env, "•••"),
        }


def json_safe(value: Any, depth: int = 4) -> Any:
    """A value as JSON can hold it; what it can't becomes its short text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's too
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else str(value)
    if depth and isinstance(value, Mapping):
        return {_short(k): json_safe(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [json_safe(v, depth - 1) for v in value]
    return _short(value)


def _short(value: Any) -> str:
    return short_text(value, 200)


def _is_whole(value: Any, least: int | None = None) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return least is None or value >= least


def _choice(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(
            str(value).upper(), allowed, 1
        ) or difflib.get_close_matches(str(value).lower(), allowed, 1)
        hint = f"did you mean {near[0]}?" if near else ""
        raise OptionError(f"{what} must be one of {', '.join(allowed)}, not {value!r}", hint=hint)


def default_storage() -> str:
    """Ray's own default directory for results."""
    return os.environ.get("RAY_AIR_LOCAL_CACHE_DIR") or "~/ray_results"


def absolute_storage(path: str | os.PathLike[str]) -> str:
    """A local path made absolute with ``~`` expanded; a URI as it is."""
    text = os.fspath(path)
    if "://" in text:
        return text
    try:
        return str(Path(text).expanduser().absolute())
    except RuntimeError as error:
        raise StorageError(f"the storage path {text!r} can't be used: {error}") from error


def join_storage(path: str, name: str) -> str:
    """``name`` below an absolute path or URI.

    Examples
    --------
    >>> join_storage("s3://bucket/runs?scheme=http", "demo")
    's3://bucket/runs/demo?scheme=http'
    """
    mark, query = "", ""
    if "://" in path:
        path, mark, query = path.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


#: In the names of a URI's parameters, what makes the value a secret.
_SECRETS = "key|secret|token|passw|credential|signature|sas"


def without_secrets(path: str) -> str:
    """A storage path or URI, or text that has some, to show: without a user or a key in it.

    Examples
    --------
    >>> without_secrets("s3://key:secret@bucket/runs?scheme=http")
    's3://bucket/runs?scheme=http'
    >>> without_secrets("can't open 'abfs://runs/a?sas_token=abc&tls=1'")
    "can't open 'abfs://runs/a?sas_token=•••&tls=1'"
    """
    path = re.sub(r"(\w://)[^/?@:\s]*:[^?@\s]*@", r"\1", path)
    return re.sub(rf"(?i)([?&][\w-]*(?:{_SECRETS})[\w-]*=)[^&\s'\"]+", r"\1•••", path)


def filesystem_of(path: str) -> tuple[pafs.FileSystem, str]:
    """pyarrow's filesystem for an absolute path or URI, and the path on it.

    A scheme that pyarrow does not know is left to fsspec.

    Raises
    ------
    StorageError
        When the scheme is unknown or its filesystem can't be opened.
    """
    try:
        if "://" not in path:
            return pafs.LocalFileSystem(), path
        try:
            filesystem, inner = pafs.FileSystem.from_uri(_quoted(path))
        except pa.ArrowInvalid as error:
            if "Unrecognized filesystem type" not in str(error):
                raise
            from fsspec.core import url_to_fs

            found, inner = url_to_fs(path)
            filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(found))
        return filesystem, inner
    except Exception as error:
        scheme = urlsplit(path).scheme
        raise StorageError(
            f"the storage path {without_secrets(path)!r} can't be opened: "
            + without_secrets(str(error)),
            hint=f"check the {scheme}:// address and its credentials, or use a local path",
        ) from error


def _quoted(uri: str) -> str:
    """A URI with the characters encoded that names of runs may have and URIs may not.

    Examples
    --------
    >>> _quoted("s3://bucket/my%20runs/größe 3?scheme=http")
    's3://bucket/my%20runs/gr%C3%B6%C3%9Fe%203?scheme=http'
    """
    return re.sub(r'[^!-~]|[<>"{}|\\^`]', lambda found: quote(found[0]), uri)


def address_on(filesystem: pafs.FileSystem, path: str) -> str:
    """A path on a filesystem to show and to give back, with the scheme where it needs one."""
    return {"s3": "s3://", "gcs": "gs://"}.get(filesystem.type_name, "") + path


def checkpoint_place(source: Any) -> tuple[pafs.FileSystem, str, str] | None:
    """Where a ``ray.train.Checkpoint``, a path or a URI lies; None for anything else.

    Returns
    -------
    filesystem : pyarrow.fs.FileSystem
    path : str
        On that filesystem.
    shown : str
        The address to show, without a key in it.
    """
    # Before paths: Ray's Checkpoint pretends to be one, to say that it is none.
    if hasattr(source, "filesystem") and hasattr(source, "as_directory"):
        path = str(source.path)
        return source.filesystem, path, address_on(source.filesystem, path)
    if not isinstance(source, str | os.PathLike):
        return None
    address = absolute_storage(source)
    return *filesystem_of(address), without_secrets(address)


def check_storage(storage_path: str, name: str) -> None:
    """Check that a run called ``name`` may be written under ``storage_path``.

    Raises
    ------
    StorageError
        When it can't be written, or a finished run has the name.
    """
    filesystem, root = _filesystem_and_root(storage_path)
    # Its own name: another kernel may be checking the same directory.
    marker = f"{root}/.raynb-write-test-{uuid.uuid4().hex[:8]}"
    try:
        filesystem.create_dir(root, recursive=True)
        with filesystem.open_output_stream(marker):
            pass
        filesystem.delete_file(marker)
    except Exception as error:
        raise StorageError(
            f"the storage path {without_secrets(storage_path)} can't be written: "
            + without_secrets(str(error)),
            hint="choose another with --storage-path (or storage_path=…)",
        ) from error
    record = read_record(filesystem, f"{root}/{name}")
    if record is not None and record.get("state") == "finished":
        raise StorageError(
            f"a finished run is already called {name!r} in {without_secrets(storage_path)}",
            hint=f"choose another --name, such as {_free_name(filesystem, root, name)}, or leave "
            "it out for one made from the time",
            topic="name-taken",
        )


def _filesystem_and_root(storage_path: str) -> tuple[pafs.FileSystem, str]:
    filesystem, root = filesystem_of(storage_path)
    return filesystem, root.rstrip("/")


def _name_from_time(storage_path: str, prefix: str) -> str:
    """A run's name from the time; a later one where another run of this second has it."""
    name = time.strftime(f"{prefix}-%Y%m%d-%H%M%S")
    filesystem, root = _filesystem_and_root(storage_path)
    try:
        taken = filesystem.get_file_info(f"{root}/{name}").type != pafs.FileType.NotFound
        return _free_name(filesystem, root, name) if taken else name
    except Exception:
        return name  # storage that can't be read has its own error, from check_storage


def _free_name(filesystem: pafs.FileSystem, root: str, name: str) -> str:
    stem, _, number = name.rpartition("-")
    stem, start = (stem, int(number) + 1) if stem and number.isdecimal() else (name, 2)
    for k in range(start, start + 1000):
        candidate = f"{stem}-{k}"
        info = filesystem.get_file_info(f"{root}/{candidate}")
        if info.type == pafs.FileType.NotFound:
            return candidate
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


#: Bytes of a record that are read: a thousand ranks or ten thousand trials have some ten millions.
MAX_RECORD = 200_000_000
#: What reading a run's record may raise, whatever lies there.
UNREADABLE = (OSError, ValueError, RecursionError)


def record_content(filesystem: pafs.FileSystem, run_dir: str) -> Any:
    """The JSON in a run's ``raynb/record.json``; raises one of :data:`UNREADABLE`."""
    with filesystem.open_input_stream(f"{run_dir}/{RAYNB_DIR}/record.json") as stream:
        content = stream.read(MAX_RECORD + 1)
    if len(content) > MAX_RECORD:
        raise ValueError(f"it has more than {MAX_RECORD:,} bytes")
    record = json.loads(content)
    # JSON may name halves of characters, which no table of pandas takes.
    return _whole_text(record) if rb"\ud" in content.lower() else record


def _whole_text(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(k): _whole_text(v) for k, v in value.items()}
    return [_whole_text(v) for v in value] if isinstance(value, list) else value


def read_record(filesystem: pafs.FileSystem, run_dir: str) -> dict[str, Any] | None:
    """A run's ``raynb/record.json``, or None where there is none that can be read."""
    try:
        record = record_content(filesystem, run_dir)
    except UNREADABLE:
        return None
    return record if isinstance(record, dict) else None


def write_record(filesystem: pafs.FileSystem, run_dir: str, record: Mapping[str, Any]) -> None:
    """Write a run's ``raynb/record.json``, whole or not at all."""
    directory = f"{run_dir}/{RAYNB_DIR}"
    filesystem.create_dir(directory, recursive=True)
    path = f"{directory}/record.json"
    with filesystem.open_output_stream(path + ".tmp") as stream:
        # Samplers and summaries may hold what JSON can't.
        stream.write(json.dumps(json_safe(record, depth=12), indent=1, allow_nan=False).encode())
    filesystem.move(path + ".tmp", path)
