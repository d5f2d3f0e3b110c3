"""What a process is like before a job, and making it so again after one."""

from __future__ import annotations

import contextlib
import gc
import importlib
import linecache
import logging
import multiprocessing
import os
import random
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import psutil

import raynb
from raynb.telemetry.units import human_bytes

#: Seconds that a job's processes get to end by themselves.
END_S = 1.0
#: Packages whose classes are looked after too: what notebooks patch.
_PATCHED = ("torch", "torchvision", "ray", "numpy")
#: torch's settings of the whole process: how they are read, and set.
_TORCH: tuple[tuple[str, str], ...] = (
    ("get_default_dtype", "set_default_dtype"),
    ("get_num_threads", "set_num_threads"),
    ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
)
_TORCH_FLAGS = (
    ("torch.backends.cudnn", ("enabled", "benchmark", "deterministic", "allow_tf32")),
    ("torch.backends.cuda.matmul", ("allow_tf32", "allow_fp16_reduced_precision_reduction")),
    ("torch.backends.mkldnn", ("enabled",)),
    ("torch.utils.deterministic", ("fill_uninitialized_memory",)),
)
#: torch's dictionaries of hooks that every module or optimizer calls.
_HOOKS = (
    ("torch.nn.modules.module", "_global_"),
    ("torch.optim.optimizer", "_global_"),
    ("torch.autograd.graph", "_global_"),
)


@dataclass
class Left:
    """What a job left behind and could not be taken back, or had to be.

    Attributes
    ----------
    cuda : int
        Bytes of CUDA memory still allocated; 0 without a GPU.
    cuda_by : list of str
        Who holds it, as far as it can be known.
    threads : list of str
        Names of threads that go on.
    files : list of str
        Files that are still open.
    processes : int
        Child processes that had to be ended.
    restored : list of str
        Functions and methods of libraries that the job had replaced.
    """

    cuda: int = 0
    cuda_by: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    processes: int = 0
    restored: list[str] = field(default_factory=list)


class Baseline:
    """The state of this process to which :meth:`restore` takes it back.

    It is taken when the process is set up, on a thread that lives as long as the process.
    """

    def __init__(self) -> None:
        gc.collect()
        # What is there now stays: later collections look at what jobs have made alone.
        gc.freeze()
        self._environ = dict(os.environ)
        self._cwd = os.getcwd()
        self._path = list(sys.path)
        self._modules = set(sys.modules)
        self._own = own_places()
        self._threads = {t.ident for t in threading.enumerate()}
        self._children = {p.pid for p in _children()}
        self._files = _open_files()
        self._filters = list(warnings.filters)
        root = logging.getLogger()
        self._logging = (root.level, list(root.handlers), logging.root.manager.disable)
        self._limits = (sys.getrecursionlimit(), sys.getswitchinterval())
        self._hooks = (sys.excepthook, threading.excepthook, sys.displayhook, sys.unraisablehook)
        self._torch = _torch_settings()
        self._torch_hooks = {id(d): dict(d) for d in _torch_hooks()}
        self._originals: dict[str, dict[str, Any]] = {}
        self._class_originals: dict[type, dict[str, Any]] = {}
        self._learn(self._modules)
        # A library's own code is compiled already; a user's must be what the file says now.
        sys.dont_write_bytecode = True

    def keep(self, environ: Mapping[str, str]) -> None:
        """Let environment variables be part of what :meth:`restore` goes back to."""
        self._environ.update(environ)

    def restore(self, names: Mapping[str, Any] | None = None) -> Left:
        """Make the process what it was, and tell what a job left.

        Parameters
        ----------
        names : Mapping, optional
            Variables that stay, by which what they hold is told.
        """
        left = Left()
        left.processes = self._end_processes()
        os.environ.clear()
        os.environ.update(self._environ)
        with contextlib.suppress(OSError):
            os.chdir(self._cwd)
        sys.path[:] = self._path
        sys.excepthook, threading.excepthook, sys.displayhook, sys.unraisablehook = self._hooks
        sys.setrecursionlimit(self._limits[0])
        sys.setswitchinterval(self._limits[1])
        self._restore_logging()
        multiprocessing.set_start_method(None, force=True)
        self._drop_modules()
        _restore_torch(self._torch, self._torch_hooks)
        for forget in (_forget_figures, _forget_compiled):
            with contextlib.suppress(Exception):
                forget()
        gc.collect()
        left.restored = self._restore_patched()
        new = set(sys.modules) - self._modules
        self._learn(new)
        self._modules |= new
        left.threads = [
            t.name
            for t in threading.enumerate()
            if t.ident not in self._threads and not t.name.startswith(("raynb-", "ThreadPoolExec"))
        ]
        left.files = sorted(_open_files() - self._files)
        left.cuda, left.cuda_by = _cuda_left(names or {})
        seed_as_new()
        return left

    # -- parts -----------------------------------------------------------------------------------

    def _end_processes(self) -> int:
        """End what the job started, such as a DataLoader's workers."""
        found = [p for p in _children() if p.pid not in self._children]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, alive = psutil.wait_procs(found, END_S)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        multiprocessing.active_children()  # reaps those that it started
        return len(found)

    def _restore_logging(self) -> None:
        root = logging.getLogger()
        level, handlers, disabled = self._logging
        root.setLevel(level)
        root.handlers[:] = handlers
        logging.disable(disabled)
        warnings.filters[:] = self._filters  # type: ignore[index]
        warnings.filterwarnings("default", "raynb", append=True)  # makes Python look at them anew
        warnings.filters.pop()  # type: ignore[attr-defined]

    def _drop_modules(self) -> None:
        """Forget the user's own modules: the next job imports them as they are then."""
        for name, module in list(sys.modules.items()):
            if name not in self._modules and is_users(module, self._own):
                del sys.modules[name]
                parent, _, last = name.rpartition(".")
                if parent in sys.modules:
                    with contextlib.suppress(AttributeError):
                        delattr(sys.modules[parent], last)
        importlib.invalidate_caches()
        linecache.clearcache()

    def _learn(self, names: set[str]) -> None:
        """Note the functions and classes of modules, and the methods of some classes."""
        for name in names:
            module = sys.modules.get(name)
            if not isinstance(module, ModuleType):
                continue
            self._originals[name] = found = {
                k: v
                # By the type itself: what is deprecated may warn when it is asked.
                for k, v in list(vars(module).items())
                if issubclass(type(v), FunctionType | type)
            }
            if name.partition(".")[0] not in _PATCHED:
                continue
            for value in found.values():
                if issubclass(type(value), type) and value.__module__ == name:
                    self._class_originals[value] = {
                        k: v for k, v in list(vars(value).items()) if isinstance(v, FunctionType)
                    }

    def _restore_patched(self) -> list[str]:
        """Put back what a job replaced in libraries with functions or classes of its own."""
        # Frozen objects are not listed: these are made by jobs.
        made = {
            id(o)
            for o in gc.get_objects()
            if isinstance(o, FunctionType | type) and getattr(o, "__module__", "") == "__main__"
        }
        if not made:
            return []
        restored = []
        for name, found in self._originals.items():
            module = sys.modules.get(name)
            for key, value in found.items():
                if module is not None and id(vars(module).get(key)) in made:
                    setattr(module, key, value)
                    restored.append(f"{name}.{key}")
        for cls, methods in self._class_originals.items():
            for key, value in methods.items():
                if id(vars(cls).get(key)) in made:
                    setattr(cls, key, value)
                    restored.append(f"{cls.__module__}.{cls.__qualname__}.{key}")
        return restored


def own_places() -> tuple[str, ...]:
    """Directories of what is installed: Python's own, packages, and raynb."""
    paths = sysconfig.get_paths()
    found = {paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {sys.prefix, sys.base_prefix, os.path.dirname(os.path.abspath(raynb.__file__))}
    # "/usr" is the prefix of a system's Python, and may be above anything.
    found -= {"/", "/usr", "/usr/local"}
    return tuple(os.path.join(os.path.realpath(p), "") for p in found)


def is_users(module: Any, installed: tuple[str, ...]) -> bool:
    """Whether a module is a file of the user's, and not of an installed package."""
    file = getattr(module, "__file__", None)
    if file is None:  # a package without __init__.py
        places = list(getattr(module, "__path__", None) or ())
        file = os.path.join(places[0], "") if places else ""
    if not file or file.endswith((".so", ".pyd")):
        return False
    parts = file.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return not os.path.realpath(file).startswith(installed)


def seed_as_new() -> None:
    """Seed every generator as a new process does: at random."""
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        # torch.seed() would also note it for a CUDA that is not there, each time anew.
        torch.default_generator.seed()
        if torch.cuda.is_initialized():
            torch.cuda.seed_all()


def _children() -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process().children(recursive=True)
    return []


def _open_files() -> set[str]:
    with contextlib.suppress(psutil.Error, OSError):
        found = {f.path for f in psutil.Process().open_files()}
        return {path for path in found if not path.startswith(("/proc/", "/sys/", "/dev/"))}
    return set()


def _torch_settings() -> list[tuple[Callable[..., Any], Any]]:
    """What sets torch back to how it is now, as functions and their argument."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    found: list[tuple[Callable[..., Any], Any]] = []
    for get, put in _TORCH:
        with contextlib.suppress(Exception):
            found.append((getattr(torch, put), getattr(torch, get)()))
    for name, flags in _TORCH_FLAGS:
        owner: Any = torch
        with contextlib.suppress(Exception):
            for part in name.split(".")[1:]:
                owner = getattr(owner, part)
            for flag in flags:
                value = getattr(owner, flag)
                found.append((_setter(owner, flag), value))
    with contextlib.suppress(Exception):
        from torch._tensor_str import PRINT_OPTS

        shown = dict(vars(PRINT_OPTS))
        found.append((vars(PRINT_OPTS).update, shown))
    return found


def _setter(owner: Any, flag: str) -> Callable[[Any], None]:
    return lambda value: setattr(owner, flag, value)


def _torch_hooks() -> Iterator[dict[Any, Any]]:
    for name, prefix in _HOOKS:
        if name in sys.modules:
            for key, value in vars(sys.modules[name]).items():
                if key.startswith(prefix) and isinstance(value, dict):
                    yield value


def _restore_torch(settings: list[tuple[Callable[..., Any], Any]], hooks: dict[int, Any]) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for put, value in settings:
        with contextlib.suppress(Exception):
            put(value)
    with contextlib.suppress(Exception):
        torch.set_default_device(None)
    for found in _torch_hooks():
        before = hooks.get(id(found), {})
        if found.keys() != before.keys():
            found.clear()
            found.update(before)


def _forget_figures() -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")


def _forget_compiled() -> None:
    if "torch._dynamo.eval_frame" in sys.modules:
        sys.modules["torch"].compiler.reset()


def _cuda_left(names: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Bytes of GPU memory that are still allocated, and who holds most of them."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0, []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    total = int(torch.cuda.memory_allocated())
    if not total:
        return 0, []
    held = {
        f"variable `{name}` of %%distributed cells": device_bytes(names[name]) for name in names
    }
    known = {id(t) for value in list(names.values()) for t in _tensors(value)}
    for o in gc.get_objects():
        with contextlib.suppress(Exception):
            if isinstance(o, torch.Tensor) and o.is_cuda and id(o) not in known:
                held[f"a tensor {tuple(o.shape)} of {o.dtype}"] = o.untyped_storage().nbytes()
    largest = sorted(held.items(), key=lambda h: -h[1])[:5]
    return total, [f"{human_bytes(n)} by {who}" for who, n in largest if n]


def device_bytes(value: Any) -> int:
    """Bytes that the tensors of a variable hold on a GPU: its own, a module's, an optimizer's."""
    return sum(t.untyped_storage().nbytes() for t in _tensors(value) if t.is_cuda)


def _tensors(value: Any, depth: int = 3) -> list[Any]:
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, torch.nn.Module):
        grads = [p.grad for p in value.parameters() if p.grad is not None]
        return [*value.parameters(), *value.buffers(), *grads]
    if isinstance(value, torch.optim.Optimizer):
        value = list(value.state.values())
    if isinstance(value, dict):
        value = list(value.values())
    if depth and isinstance(value, list | tuple):
        return [t for part in value[:10_000] for t in _tensors(part, depth - 1)]
    return []
