"""Cell capture: which names a cell needs from the notebook, and how their values travel."""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import inspect
import io
import linecache
import os
import random
import re
import reprlib
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

from ray import cloudpickle

from raynb.engine.names import WORKER_NAMES, Names, bound_name, find_names
from raynb.errors import CaptureError
from raynb.telemetry.units import human_bytes
from raynb.worker.program import (
    CellProgram,
    CellSource,
    compile_cell,
    takes_config,
)

DEFAULT_LIMIT = 50 * 2**20
_LARGE_NOTE = "load it inside the cell or through Ray Data for less memory and a faster start"
# What the kernel alone has.
_KERNEL_NAMES = frozenset({"get_ipython", "In", "Out"})
_MISSING = object()


@dataclass(frozen=True)
class Captured:
    """One name that a cell takes from the notebook.

    Attributes
    ----------
    name : str
        The name in the cell.
    kind : str
        ``"module"``, ``"function"``, ``"class"`` or the name of the value's type.
    size : int or None
        Bytes that travel; None for what travels by name, and for what isn't measured.
    via : str
        ``"name"``, ``"value"`` or ``"object store"``; ``"kernel"`` where nothing is shipped.
    line : int
        The line of the cell that reads it first.
    note : str
        Advice, or an empty string.
    """

    name: str
    kind: str
    size: int | None
    via: str
    line: int
    note: str = ""


@dataclass
class Capture:
    """A cell with what it needs.

    Attributes
    ----------
    program : CellProgram
        The cell itself.
    table : list of Captured
        What was captured, in the order of first use.
    payload : bytes
        The small values, pickled together so that what they share stays shared;
        ``raynb.worker.program.load_values`` reads them back.
    large : dict
        The values above the limit, not pickled here. Put them into the object store as one
        object, again for what they share. Where nothing is shipped, every value is here.
    """

    program: CellProgram
    table: list[Captured]
    payload: bytes
    large: dict[str, Any]


def capture_cell(
    source: str,
    *,
    filename: str,
    label: str,
    namespace: Mapping[str, Any],
    first_line: int = 2,
    func_name: str = "train_func",
    func_explicit: bool = False,
    limit: int = DEFAULT_LIMIT,
    skip_pickle: bool = False,
    notebook_dir: str | os.PathLike[str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Capture:
    """Turn a cell into a program with its values, or say before anything starts why not.

    Parameters
    ----------
    source : str
        The cell below its magic line.
    filename : str
        IPython's own file name of the cell.
    label : str
        How users see the cell, ``"Cell In[3]"``.
    namespace : Mapping
        The notebook's names.
    first_line : int
        The line of the cell on which ``source`` starts.
    func_name : str
        The name that makes the cell the definition of a train function.
    func_explicit : bool
        Whether the user chose ``func_name``; it may then be a callable of the notebook.
    limit : int
        Bytes above which a value goes through the object store.
    skip_pickle : bool
        Whether the cell runs in this process, where values need no shipping.
    notebook_dir : path-like, optional
        The notebook's directory; modules that live there are marked as local files.
    labels : Mapping, optional
        File names of the notebook's other cells with their labels, for tracebacks.

    Returns
    -------
    Capture
        The program, its table and its values.

    Raises
    ------
    CaptureError
        For an empty cell, IPython syntax, a train function of the wrong signature, names that
        are defined nowhere, and values that can't be sent: one error for all of a kind.
    SyntaxError
        With the file name, line, text and offset of the cell.
    """
    text = "\n" * (first_line - 1) + source.replace("\r\n", "\n").replace("\r", "\n")
    tree, code = _compile(text, filename)
    definition = _find_definition(tree, func_name)
    from_notebook = definition is None and func_explicit
    config = None
    if isinstance(definition, ast.FunctionDef) and not definition.decorator_list:
        written = f"{func_name}({ast.unparse(definition.args)})"
        config = _check_signature(written, _signature(definition.args), definition.lineno)
    elif from_notebook:
        config = _check_notebook_function(func_name, namespace, first_line - 1)
    elif not tree.body:
        raise CaptureError("empty cell: there is nothing to train", hint="write the train code")

    names = find_names(tree, code)
    if from_notebook:
        names.required.setdefault(func_name, max(first_line - 1, 1))
    found = _look_up(names, namespace)
    cargo = _Cargo(limit=limit, notebook_dir=notebook_dir)
    for name, line in sorted({**names.optional, **names.required}.items(), key=lambda x: x[::-1]):
        if name not in found:
            continue
        if skip_pickle:
            cargo.keep(name, found[name], line)
        else:
            cargo.add(name, found[name], line, required=name in names.required)
    cargo.check()
    cargo.add_definitions(namespace)
    program = CellProgram(
        source=text,
        filename=filename,
        label=label,
        form="function" if definition is not None or from_notebook else "body",
        func_name=func_name,
        takes_config=config,
        imports=_submodules(found, code),
        other_cells=_other_cells(cargo.files - {filename}, labels or {}),
    )
    return Capture(program, cargo.table, cloudpickle.dumps(cargo.small), cargo.large)


def pack(names: Sequence[str], namespace: Mapping[str, Any]) -> tuple[bytes, int]:
    """Pickle variables of the notebook by name.

    Parameters
    ----------
    names : sequence of str
    namespace : Mapping
        The notebook's names.

    Returns
    -------
    bytes
    int
        How many bytes the values have.

    Raises
    ------
    CaptureError
        For names that aren't defined and values that can't be sent: one error for all of a kind.
    """
    missing = [name for name in names if name not in namespace]
    if missing:
        raise CaptureError(
            f"there is no variable `{missing[0]}` in the notebook"
            + _suggestion(missing[0], list(namespace)),
            hint="run the cell that defines it, or correct the name",
        )
    cargo = _Cargo(limit=2**62, notebook_dir=None)
    for name in names:
        cargo.add(name, namespace[name], 1, required=True)
    cargo.check()
    payload = cloudpickle.dumps({name: namespace[name] for name in names})
    return payload, len(payload)


def check_cell(text: str, filename: str) -> None:
    """Check that a cell is Python that a worker can run.

    Raises
    ------
    CaptureError
        For IPython syntax.
    SyntaxError
        With the cell's file name and line.
    """
    _compile(text, filename)


def format_table(table: Sequence[Captured]) -> str:
    """Write what was captured as columns of plain text.

    Parameters
    ----------
    table : sequence of Captured
        The rows.

    Returns
    -------
    str
        A header and one line a name.
    """
    if not table:
        return "The cell takes nothing from the notebook."
    rows = [("name", "kind", "size", "how", "line", "note")]
    rows += [(c.name, c.kind, human_bytes(c.size), c.via, str(c.line), c.note) for c in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


# --- the cell's text ------------------------------------------------------------------------

_IPYTHON_LINE = re.compile(
    r"""^\s*(?:[!?]|%{1,2}[a-zA-Z])   # !cmd, ?name, %magic, %%magic
    |^\s*[\w.,\s]+=\s*(?:!|%[a-zA-Z])  # files = !ls
    |^\s*%*[\w.*]+\?{1,2}\s*$         # name?
    """,
    re.VERBOSE,
)


def _compile(text: str, filename: str) -> tuple[ast.Module, CodeType]:
    try:
        code = compile_cell(text, filename)
    except SyntaxError as error:
        for number, line in enumerate(text.split("\n")[: error.lineno], start=1):
            if _IPYTHON_LINE.match(line):
                raise CaptureError(
                    f"IPython syntax can't run on a worker: line {number}, `{line.strip()}`",
                    hint="run that line in a cell of its own, before this one",
                ) from None
        raise
    return ast.parse(text, filename), code


def _find_definition(tree: ast.Module, func_name: str) -> ast.stmt | None:
    """Find the last top-level statement that defines, assigns or imports the train function."""
    for node in reversed(tree.body):
        match node:
            case ast.FunctionDef(name=name) if name == func_name:
                return node
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(t, ast.Name) and t.id == func_name for t in targets):
                    return node
            case ast.Import() | ast.ImportFrom():
                if any(bound_name(alias) == func_name for alias in node.names):
                    return node
    return None


def _signature(args: ast.arguments) -> inspect.Signature:
    positional = [*args.posonlyargs, *args.args]
    first_default = len(positional) - len(args.defaults)
    parameters = [
        inspect.Parameter(
            arg.arg,
            inspect.Parameter.POSITIONAL_ONLY
            if index < len(args.posonlyargs)
            else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if index < first_default else ...,
        )
        for index, arg in enumerate(positional)
    ]
    if args.vararg:
        parameters.append(inspect.Parameter(args.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    parameters += [
        inspect.Parameter(
            arg.arg,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is None else ...,
        )
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return inspect.Signature(parameters)


def _check_signature(written: str, signature: inspect.Signature, line: int) -> bool:
    try:
        return takes_config(signature)
    except TypeError:
        raise CaptureError(
            f"`{written}` on line {line} requires more than one argument, the config",
            hint=f"write `def {written.partition('(')[0]}(config):` and read the rest from the "
            "config or from the notebook's names",
        ) from None


def _check_notebook_function(func_name: str, namespace: Mapping[str, Any], line: int) -> bool:
    function = namespace.get(func_name)
    if not callable(function):
        raise CaptureError(
            f"the train function `{func_name}` is defined neither in the cell nor in the notebook"
            + _suggestion(func_name, [n for n, v in namespace.items() if callable(v)]),
            hint=f"define `{func_name}` in the cell, or leave --func out to run the cell itself",
        )
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise CaptureError(f"`{func_name}` can't be a train function: {error}") from error
    return _check_signature(f"{func_name}{signature}", signature, line)


def _look_up(names: Names, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Find the values; names of Python itself are left out unless the notebook rebinds them."""
    kernel_only = sorted(_KERNEL_NAMES & names.required.keys(), key=names.required.__getitem__)
    if kernel_only:
        uses = ", ".join(f"`{name}` on line {names.required[name]}" for name in kernel_only)
        raise CaptureError(
            f"the cell reads {uses}, which the notebook's kernel alone has",
            hint="read it in another cell and give the value a name of its own",
        )
    found, missing = {}, []
    for name in {**names.optional, **names.required}:
        if name in _KERNEL_NAMES:
            continue
        builtin = getattr(builtins, name, _MISSING)
        value = namespace.get(name, _MISSING)
        if value is _MISSING and name == "display":
            # IPython puts it among the builtins of the kernel; a worker's own lack it.
            value = builtin
        # IPython wraps `open` in the notebook's names; it is Python's own all the same.
        own = value is builtin or getattr(value, "__wrapped__", None) is builtin
        if value is not _MISSING and (name == "display" or not own):
            found[name] = value
        elif builtin is _MISSING and name in names.required and not names.star_import:
            missing.append(name)
    if missing:
        candidates = [*namespace, *dir(builtins), *names.bound]
        lines = sorted((names.required[name], name) for name in missing)
        raise CaptureError(
            "the cell reads names that neither it nor the notebook defines",
            detail="\n".join(
                f"`{name}` on line {line}{_suggestion(name, candidates)}" for line, name in lines
            ),
            hint="run the cell that defines them, or correct the names",
            topic="undefined-names",
        )
    return found


def _suggestion(name: str, candidates: Sequence[str]) -> str:
    known = {c for c in candidates if not c.startswith("_") and c.isidentifier()}
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f": did you mean `{close[0]}`?" if close else ""


# --- the values -----------------------------------------------------------------------------


class _Cargo:
    """Sorts values by how they travel, and gathers those that can't."""

    def __init__(self, limit: int, notebook_dir: str | os.PathLike[str] | None) -> None:
        self.table: list[Captured] = []
        self.small: dict[str, Any] = {}
        self.large: dict[str, Any] = {}
        self.files: set[str] = set()
        self._limit = limit
        self._notebook_dir = notebook_dir
        self._definitions: dict[str, Any] = {}
        self._refused: list[str] = []

    def keep(self, name: str, value: object, line: int) -> None:
        """Take a value as it is, for a cell that runs in this process."""
        self.large[name] = value
        self.table.append(Captured(name, _kind(value), _known_size(value), "kernel", line))

    def add(self, name: str, value: object, line: int, *, required: bool) -> None:
        """Take a value; an optional one only if it is small and can be sent."""
        size = _known_size(value)
        survey = _Survey()
        try:
            _refuse(value, _objection(value) or _iterator_objection(value))
            if size is None or size <= self._limit:
                survey.dump(value)
        except Exception as error:
            if required:
                path, culprit, why = _blame(name, value, error)
                where = f" ({path}, {_type_name(culprit)})" if culprit is not value else ""
                self._refused.append(f"`{name}` ({_type_name(value)}) on line {line}{where}: {why}")
            return
        size = survey.size if size is None else size
        large = size > self._limit
        if large and not required:
            return
        (self.large if large else self.small)[name] = value
        self._definitions.update(survey.definitions)
        self.files |= survey.files
        note = self._note(value, large)
        if _by_name(value):
            row = Captured(name, _kind(value), None, "name", line, note)
        else:
            via = "object store" if large else "value"
            row = Captured(name, _kind(value), size, via, line, note)
        self.table.append(row)

    def check(self) -> None:
        """Raise one error for every value that can't be sent."""
        if self._refused:
            one = len(self._refused) == 1
            raise CaptureError(
                "a value of the notebook can't be sent to the workers"
                if one
                else f"{len(self._refused)} values of the notebook can't be sent to the workers",
                detail="\n".join(self._refused),
                hint=f"create {'it' if one else 'them'} inside the cell, "
                "where each worker makes its own",
                topic="unpicklable",
            )

    def add_definitions(self, namespace: Mapping[str, Any]) -> None:
        """Send the classes and functions behind the values under their own names.

        An instance of a notebook class pickles on the worker only where the main module has
        the class, whether the cell names it or not.
        """
        for name, value in self._definitions.items():
            shadows = hasattr(builtins, name) and namespace.get(name) is not value
            if name not in WORKER_NAMES and not shadows and name not in self.large:
                self.small.setdefault(name, value)

    def _note(self, value: object, large: bool) -> str:
        if large:
            return _LARGE_NOTE
        if _is_random_state(value):
            return "each rank gets a copy and draws the same numbers"
        if self._notebook_dir is not None and _by_name(value):
            module = sys.modules[value.__name__ if isinstance(value, ModuleType) else _home(value)]
            file = os.path.abspath(getattr(module, "__file__", None) or os.sep)
            directory = os.path.join(os.path.abspath(self._notebook_dir), "")
            if file.startswith(directory) and "site-packages" not in file.split(os.sep):
                return "local file"
        return ""


class _Refused(Exception):
    """Raised in mid-pickle: the value would pickle, or fail with a message that helps nobody."""

    def __init__(self, reason: str, value: object) -> None:
        super().__init__(reason)
        self.value = value


def _refuse(value: object, reason: str) -> None:
    if reason:
        raise _Refused(reason, value)


class _Survey(cloudpickle.CloudPickler):
    """Pickles into nothing: counts bytes, refuses what is of no use elsewhere, notes definitions.

    Attributes
    ----------
    definitions : dict
        Classes and functions of the notebook that travel by value.
    files : set of str
        File names of the cells that define them.
    """

    def __init__(self) -> None:
        self._count = _ByteCount()
        self.definitions: dict[str, Any] = {}
        self.files: set[str] = set()
        # Buffers are counted, not copied: a large value costs no memory to measure.
        super().__init__(self._count, protocol=5, buffer_callback=self._count.add_buffer)

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._count.total

    def reducer_override(self, obj: Any) -> Any:
        """Look at each object on its way into the pickle."""
        _refuse(obj, _objection(obj))
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            if obj.__qualname__.isidentifier():
                self.definitions[obj.__qualname__] = obj
            if isinstance(obj, FunctionType):
                self.files.add(obj.__code__.co_filename)
        return super().reducer_override(obj)


class _ByteCount:
    """A file that only counts."""

    def __init__(self) -> None:
        self.total = 0

    def write(self, data: Any) -> None:
        self.total += memoryview(data).nbytes

    def add_buffer(self, buffer: Any) -> None:
        self.total += buffer.raw().nbytes


def _objection(value: object) -> str:
    """Say why a value of this type is of no use outside the kernel's process."""
    torch = sys.modules.get("torch")
    loader = sys.modules.get("torch.utils.data.dataloader")
    if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
        # Pickle sends the standard streams by name.
        standard = value in (sys.stdin, sys.stdout, sys.stderr)
        return "" if standard else "an open file belongs to the kernel's process"
    if isinstance(value, socket.socket):
        return "an open socket belongs to the kernel's process"
    if isinstance(value, GeneratorType | CoroutineType | AsyncGeneratorType):
        return "a generator in progress can't be copied"
    if isinstance(value, ModuleType):
        # Without a spec and a file, no import made it; not in sys.modules, it travels by value.
        made_here = (
            value.__spec__ is None
            and not hasattr(value, "__file__")
            and value.__name__ != "__main__"
            and value.__name__ in sys.modules
        )
        return "the module was made in the kernel: workers can't import it" if made_here else ""
    if loader is not None and isinstance(value, loader._BaseDataLoaderIter):
        return "a DataLoader's iteration in progress can't be copied"
    if torch is not None and isinstance(value, torch.Generator):
        return (
            "its state would be copied to each rank and every rank would draw the same numbers: "
            "seed one per rank"
        )
    if torch is not None and isinstance(value, torch.Tensor):
        device = value.device
        if device.type not in ("cpu", "meta"):
            return f"a tensor on {device} belongs to the kernel's process: copy it with .cpu()"
    return ""


def _iterator_objection(value: object) -> str:
    """Object to Python's own iterators as variables; inside other objects they are their state."""
    if isinstance(value, Iterator) and type(value).__module__ == "builtins":
        return "an iteration in progress would start as a copy on each rank"
    return ""


def _blame(name: str, value: object, error: Exception) -> tuple[str, object, str]:
    """Find the part of a value that can't be pickled: the path to it, the part, and why."""
    path, seen = [name], [value]
    found = True
    while found and not (isinstance(error, _Refused) and error.value is value):
        found = False
        for label, part in _parts(value):
            if any(part is other for other in seen):
                continue
            seen.append(part)
            try:
                _Survey().dump(part)
            except Exception as cause:
                path.append(label)
                value, error, found = part, cause, True
                break
    return " -> ".join(path), value, str(error) or type(error).__name__


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, FunctionType):
        for name in sorted(_code_names(value.__code__) & value.__globals__.keys()):
            yield f"global {name}", value.__globals__[name]
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                yield f"variable {name}", cell.cell_contents
        yield "defaults", value.__defaults__
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{reprlib.repr(key)}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    else:
        for name, item in getattr(value, "__dict__", {}).items():
            if not (name.startswith("__") and name.endswith("__")):
                yield f".{name}", item


def _code_names(code: CodeType) -> set[str]:
    nested = (_code_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*nested)


def _kind(value: object) -> str:
    if isinstance(value, ModuleType):
        return "module"
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
        return "function"
    return "class" if isinstance(value, type) else type(value).__name__


def _type_name(value: object) -> str:
    """Write a type as users know it: ``torch.Generator``, not ``torch._C.Generator``."""
    if isinstance(value, ModuleType | type | FunctionType | BuiltinFunctionType | MethodType):
        return _kind(value)
    kind = type(value)
    parts = [p for p in kind.__module__.split(".") if not p.startswith("_") and p != "builtins"]
    return ".".join([*parts, kind.__qualname__])


def _home(value: Any) -> str:
    return str(getattr(value, "__module__", None))


def _by_name(value: Any) -> bool:
    """Tell whether a value travels as a name that the worker imports."""
    if isinstance(value, ModuleType):
        return value.__name__ in sys.modules
    if not isinstance(value, type | FunctionType | BuiltinFunctionType):
        return False
    if _home(value) == "__main__":
        return False
    found: object = sys.modules.get(_home(value))
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _known_size(value: Any) -> int | None:
    """Give the size of arrays, tensors and tables without pickling them."""
    numpy, torch, pandas = map(sys.modules.get, ("numpy", "torch", "pandas"))
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        return int(value.nbytes)
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        # A view travels with all of the memory that it looks into.
        return int(value.untyped_storage().nbytes())
    if pandas is not None and isinstance(value, pandas.DataFrame):
        # Where a column holds Python objects, only pickling tells.
        objects = any(dtype.hasobject for dtype in value.dtypes if hasattr(dtype, "hasobject"))
        return None if objects else int(value.memory_usage().sum())
    return None


def _is_random_state(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return isinstance(value, random.Random) or (
        numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState)
    )


def _submodules(values: Mapping[str, Any], code: CodeType) -> tuple[str, ...]:
    """List imported submodules that the cell reaches as attributes of a captured package.

    A package by itself doesn't import them on the worker, so ``import a.b`` in one cell and
    ``a.b.f()`` in another would fail there.
    """
    words = _code_names(code)
    packages = [v.__name__ for v in values.values() if isinstance(v, ModuleType)]
    return tuple(
        sorted(
            name
            for name, module in list(sys.modules.items())
            for package in packages
            if module is not None
            and name.startswith(package + ".")
            and words.issuperset(name[len(package) + 1 :].split("."))
        )
    )


def _other_cells(files: set[str], labels: Mapping[str, str]) -> tuple[CellSource, ...]:
    """Collect the sources of other cells, which no file holds."""
    return tuple(
        CellSource(file, labels.get(file, "notebook"), "".join(linecache.getlines(file)))
        for file in sorted(files)
        if not os.path.isfile(file) and linecache.getlines(file)
    )
