"""A notebook cell as a program: what ships to a worker, and how a worker runs it."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, TypedDict

import ray

# Ray's own copy of cloudpickle, not the one from PyPI: Ray pickles the large values and what the
# train function returns, and a notebook class keeps its identity only within one copy's tracker.
from ray import cloudpickle

# A body with a top-level return runs in a function of the name that module code has, so that its
# frames read as usual.
BODY_NAME = "<module>"
#: Characters of an exception's message, and of its traceback, that are told.
MAX_MESSAGE, MAX_TRACEBACK = 10_000, 50_000
# Written with their trailing separator: "/lib/ray" must not match "/lib/rays".
_INTERNAL = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (ray.__file__, os.path.dirname(os.path.abspath(__file__)))
)


@dataclass(frozen=True)
class CellSource:
    """The source of a notebook cell, for tracebacks.

    Attributes
    ----------
    filename : str
        IPython's own file name of the cell.
    label : str
        How users see it, ``"Cell In[3]"``.
    source : str
        Plain text whose line numbers are the cell's own.
    """

    filename: str
    label: str
    source: str


@dataclass(frozen=True)
class CellProgram:
    """A cell that is ready to run on a worker.

    Attributes
    ----------
    source : str
        Plain Python, padded with leading blank lines so that its line numbers are the cell's own.
    filename : str
        IPython's own file name of the cell.
    label : str
        How users see the cell, ``"Cell In[3]"``.
    form : str
        ``"body"``: the cell is the train function's body; ``"function"``: it defines it.
    func_name : str
        The train function's name in the function form.
    takes_config : bool or None
        Whether the train function takes the config; None when only its object can tell.
    imports : tuple of str
        Submodules that the notebook had imported and the cell reaches through their package.
    other_cells : tuple of CellSource
        The cells that define the captured functions and classes.
    """

    source: str
    filename: str
    label: str
    form: str
    func_name: str
    takes_config: bool | None = None
    imports: tuple[str, ...] = ()
    other_cells: tuple[CellSource, ...] = ()

    @property
    def cells(self) -> tuple[CellSource, ...]:
        """This cell and the others that its run can pass through."""
        return (CellSource(self.filename, self.label, self.source), *self.other_cells)


@dataclass(frozen=True)
class Frame:
    """One frame of the user's code in a traceback; ``label`` is empty outside the notebook."""

    filename: str
    line: int
    name: str
    text: str
    label: str


class CellLine(TypedDict):
    """A line of a cell."""

    label: str
    line: int
    text: str


class ExceptionInfo(TypedDict):
    """An exception in a form that JSON carries."""

    type: str
    message: str
    cell: CellLine | None
    traceback: str


def takes_config(signature: inspect.Signature) -> bool:
    """Tell whether a train function of this signature is called with the config.

    Parameters
    ----------
    signature : inspect.Signature
        The train function's signature.

    Returns
    -------
    bool
        True for one required argument, or an optional first one named ``config``.

    Raises
    ------
    TypeError
        When the function requires more than one argument or a keyword-only one.
    """
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(required) > 1 or keywords:
        raise TypeError(f"a train function takes no argument or one, the config; not {signature}")
    return bool(required) or (bool(positional) and positional[0].name == "config")


def compile_cell(source: str, filename: str) -> CodeType:
    """Compile a cell as a module; executing it defines the body if it has a top-level return.

    Parameters
    ----------
    source : str
        Plain Python with the cell's own line numbers.
    filename : str
        The file name that tracebacks carry.

    Returns
    -------
    types.CodeType
        The module's code.

    Raises
    ------
    SyntaxError
        With the file name, line, text and offset of the cell.
    """
    try:
        tree = ast.parse(source, filename)
        if _returns(tree):
            tree = _wrap(tree, filename)
        # dont_inherit: this file's own __future__ imports must not leak into the cell.
        return compile(tree, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        # Errors found after parsing carry no text, since there is no file to read it from.
        if error.text is None and error.lineno:
            lines = source.split("\n")
            error.text = lines[error.lineno - 1] if error.lineno <= len(lines) else None
        raise


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def _returns(node: ast.AST) -> bool:
    return any(
        isinstance(child, ast.Return) or (not isinstance(child, _Scope) and _returns(child))
        for child in ast.iter_child_nodes(node)
    )


class _DropAnnotations(ast.NodeTransformer):
    """Turns the body's own ``x: T = v`` into ``x = v``: a global name can't be annotated."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def _skip(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _skip


def _wrap(tree: ast.Module, filename: str) -> ast.Module:
    """Move the cell into a function whose names are all global, so that it may return."""
    tree = _DropAnnotations().visit(tree)
    futures = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    body: list[ast.stmt] = [n for n in tree.body if n not in futures]
    wrapper = ast.parse("def body(): pass").body[0]
    assert isinstance(wrapper, ast.FunctionDef)
    wrapper.name = BODY_NAME
    ast.increment_lineno(wrapper, body[0].lineno - 1)
    wrapper.body = body
    tree.body = [*futures, wrapper]
    # Python itself says which names the body binds: they're the function's local variables.
    code = compile(tree, filename, "exec", dont_inherit=True)
    function = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == BODY_NAME)
    bound = sorted({*function.co_varnames, *function.co_cellvars})
    if bound:
        wrapper.body = [ast.copy_location(ast.Global(names=bound), body[0]), *body]
    return tree


def load_values(payload: bytes) -> dict[str, Any]:
    """Read captured values back; ``Capture.payload`` is their pickled form.

    Parameters
    ----------
    payload : bytes
        What ``capture_cell`` pickled.

    Returns
    -------
    dict
        The values by the names that the cell uses.

    Raises
    ------
    ModuleNotFoundError
        When a captured name lives in a module that this node hasn't.
    """
    values: dict[str, Any] = cloudpickle.loads(payload)
    return values


def run_program(
    program: CellProgram,
    values: Mapping[str, object],
    config: dict[str, Any] | None = None,
    *,
    replace_main: bool = True,
) -> object:
    """Run a cell.

    Parameters
    ----------
    program : CellProgram
        The cell.
    values : Mapping
        The captured values, those of the object store among them.
    config : dict, optional
        The train loop's config; the cell sees it as ``config``.
    replace_main : bool
        Whether the cell's module is ``sys.modules["__main__"]`` while it runs. Off in the
        notebook's own kernel, whose main module must stay.

    Returns
    -------
    object
        What the train function returns.
    """
    for cell in program.cells:
        # No modification time: the entry survives linecache.checkcache, as IPython's own do.
        # Split as Python counts lines; splitlines would break at form feeds too.
        lines = [line + "\n" for line in cell.source.split("\n")]
        entry = (len(cell.source), None, lines, cell.filename)
        if replace_main:
            linecache.cache[cell.filename] = entry
        else:
            linecache.cache.setdefault(cell.filename, entry)
    module = ModuleType("__main__")
    names = module.__dict__
    names.update(values)
    config = {} if config is None else config
    names["config"] = config
    with _as_main(module) if replace_main else contextlib.nullcontext():
        for submodule in program.imports:
            importlib.import_module(submodule)
        exec(compile_cell(program.source, program.filename), names)
        if program.form == "function":
            function: Callable[..., object] = names[program.func_name]
            takes = program.takes_config
            if takes is None:
                takes = takes_config(inspect.signature(function))
            return function(config) if takes else function()
        body = names.pop(BODY_NAME, None)
        return body() if body else None


@contextlib.contextmanager
def _as_main(module: ModuleType) -> Iterator[None]:
    """Make a module the main one, so that its classes pickle by reference.

    It has no ``__file__``: a spawned process would run that file as its own main module.
    """
    previous = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        yield
    finally:
        sys.modules["__main__"] = previous


def user_frames(exc: BaseException, program: CellProgram) -> list[Frame]:
    """List the frames of an exception that aren't raynb's or Ray's, outermost first.

    Parameters
    ----------
    exc : BaseException
        The exception.
    program : CellProgram
        The cell that ran.

    Returns
    -------
    list of Frame
        Frames of the cell, of other cells and of libraries.
    """
    labels = {cell.filename: cell.label for cell in program.cells}
    return [
        Frame(s.filename, s.lineno or 0, s.name, s.line or "", labels.get(s.filename, ""))
        for s in traceback.extract_tb(exc.__traceback__)
        if not s.filename.startswith(_INTERNAL)
    ]


def describe_exception(exc: BaseException, program: CellProgram) -> ExceptionInfo:
    """Describe an exception for people: its message, the cell's line and a short traceback.

    Parameters
    ----------
    exc : BaseException
        The exception, whatever its ``__str__`` does.
    program : CellProgram
        The cell that ran.

    Returns
    -------
    dict
        ``type``, ``message``, ``cell`` (label, line and text of the innermost line of the cell,
        or None) and ``traceback`` (text without the frames of raynb and Ray).
    """
    try:
        message = str(exc)
    except Exception:
        message = "<its __str__ failed>"
    kind = type(exc)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return {
        "type": prefix + kind.__qualname__,
        "message": _cut(message, MAX_MESSAGE),
        "cell": _cell_line(exc, program),
        "traceback": _cut(_traceback_text(exc, program), MAX_TRACEBACK),
    }


def _cut(text: str, limit: int) -> str:
    """Text without its middle, where it is long: an exception may quote a whole tensor."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half:,} characters left out) …\n{text[-half:]}"


def _traceback_text(exc: BaseException, program: CellProgram) -> str:
    report = traceback.TracebackException.from_exception(exc, compact=True)
    pending = [report]
    for part in pending:
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if not frame.filename.startswith(_INTERNAL)]
        )
        linked = (part.__cause__, part.__context__, *(part.exceptions or ()))
        pending.extend(other for other in linked if other is not None)
    text = "".join(report.format())
    for cell in program.cells:
        text = text.replace(f'File "{cell.filename}"', cell.label)
    return text


def _cell_line(exc: BaseException, program: CellProgram) -> CellLine | None:
    """Find the innermost line of the cell, in the exception or else in those behind it."""
    pending, seen = [exc], {id(exc)}
    for part in pending:
        if isinstance(part, SyntaxError) and part.filename == program.filename and part.lineno:
            text = linecache.getline(program.filename, part.lineno).strip()
            return {"label": program.label, "line": part.lineno, "text": text}
        for frame in reversed(user_frames(part, program)):
            if frame.filename == program.filename:
                return {"label": program.label, "line": frame.line, "text": frame.text}
        members = part.exceptions if isinstance(part, BaseExceptionGroup) else ()
        for linked in (*members, part.__cause__, part.__context__):
            if linked is not None and id(linked) not in seen:
                seen.add(id(linked))
                pending.append(linked)
    return None
