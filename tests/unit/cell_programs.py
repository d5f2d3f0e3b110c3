"""Random cells for the fuzzer of the capture, and what a cell does where it runs.

Programs are made so that nothing but a name can fail in them: every operation is one of the helpers
below, which take anything. They live among the builtins under names that the capture leaves alone.
"""

from __future__ import annotations

import builtins
import dis
import symtable
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hypothesis import strategies as st

from raynb.engine.capture import capture_cell
from raynb.errors import CaptureError
from raynb.worker.program import BODY_NAME, as_main, compile_cell, load_values, run_program

#: Names that the notebook may have and the cell may bind: plain ones, functions, one of Python's
#: own, one that Python folds to another spelling, and one that classes mangle.
NAMES = ("a", "b", "c", "f", "g", "K", "sum", "ﬁ", "größe", "__p")
FILENAME = "<cell-fuzz>"
MAX_CALLS = 400


class TooLong(BaseException):
    """A program that calls itself for ever; no handler of the program catches it."""


class Helpers:
    """What a program's statements are made of, and the trace of what it did."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.calls = 0

    def note(self, *values: Any) -> int:
        self.trace.append(" ".join(map(shown, values)))
        if len(self.trace) > MAX_CALLS:
            raise TooLong
        return len(self.trace) % 3

    def mix(self, *values: Any) -> int:
        return sum(map(ord, " ".join(map(shown, values)))) % 5

    def call(self, function: Any, *args: Any) -> Any:
        """Call what can be called; coroutines and generators are run to their end."""
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise TooLong
        if not isinstance(function, FunctionType | type):
            return function
        found = function(*args)
        if hasattr(found, "send") and not hasattr(found, "__await__"):
            return list(found)
        if hasattr(found, "__await__"):
            try:
                while True:
                    found.send(None)
            except StopIteration as end:
                return end.value
        return found

    @contextmanager
    def manager(self, value: Any) -> Iterator[Any]:
        yield value

    def decorate(self, with_what: Any) -> Callable[[Any], Any]:
        def decorator(function: Any) -> Any:
            self.note(with_what)
            self.call(with_what, 1)
            return function

        return decorator


def shown(value: Any) -> str:
    """A value in words that are the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[shown(v) for v in value]}"
    if isinstance(value, dict | set):
        return f"{type(value).__name__}{sorted(map(shown, value))}"
    return type(value).__name__


@contextmanager
def helpers() -> Iterator[Helpers]:
    """The helpers among the builtins, for as long as a program runs."""
    one = Helpers()
    names = {"note": one.note, "mix": one.mix, "call": one.call, "manager": one.manager,
             "decorate": one.decorate}  # fmt: skip
    for name, value in names.items():
        setattr(builtins, f"__{name}__", value)
    try:
        yield one
    finally:
        for name in names:
            delattr(builtins, f"__{name}__")


NOTEBOOK = {
    "int": "7",
    "list": "[1, 2]",
    "text": "'text'",
    "function": "lambda *args, **more: 11",
    "absent": "",
}


def notebook(kinds: Mapping[str, str]) -> dict[str, Any]:
    """A notebook's names of these kinds, made anew."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for name, kind in kinds.items():
        if NOTEBOOK[kind]:
            exec(compile(f"{name} = {NOTEBOOK[kind]}", "<notebook>", "exec"), names)
    return names


class _Maker:
    """Draws a program, statement by statement."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._left = draw(st.integers(1, 14))
        self._loops = 0

    def _one(self, *of: Any) -> Any:
        return self._draw(st.sampled_from(of))

    def name(self) -> str:
        return str(self._one(*NAMES))

    def expression(self, depth: int = 0, walrus: bool = True) -> str:
        kinds = ["name", "name", "number"]
        if depth < 3:
            kinds += ["mix", "call", "list", "lambda", "called", "comp", "genexp", "if", "and", "f"]
            kinds += ["dictcomp", "nested"] + (["walrus", "walrus_comp"] if walrus else [])
        inner = lambda: self.expression(depth + 1, walrus)  # noqa: E731
        in_comp = lambda: self.expression(depth + 1, False)  # noqa: E731
        match self._one(*kinds):
            case "name":
                return self.name()
            case "number":
                return str(self._one(0, 1, 2))
            case "mix":
                return f"__mix__({inner()}, {inner()})"
            case "call":
                return f"__call__({self.name()}, {inner()})"
            case "list":
                return f"[{inner()}, *[{inner()}]]"
            case "lambda":
                return f"(lambda {self.name()}={inner()}, *_, **__: {in_comp()})"
            case "called":
                return f"(lambda *_: {in_comp()})()"
            case "comp":
                test = f" if __mix__({in_comp()}) + 1" if self._one(0, 1) else ""
                return f"[{in_comp()} for {self.name()} in [{in_comp()}, 1]{test}]"
            case "nested":
                name = self.name()
                return f"[{in_comp()} for {name} in [1] for {self.name()} in [{name}]]"
            case "genexp":
                return f"list({in_comp()} for {self.name()} in [{in_comp()}])"
            case "dictcomp":
                return f"{{1: {in_comp()} for {self.name()} in [{in_comp()}]}}"
            case "if":
                return f"({inner()} if __mix__({inner()}) % 2 else {inner()})"
            case "and":
                return f"({inner()} {self._one('and', 'or')} {inner()})"
            case "f":
                return f'f"{{{self.name()}!s:.0}}{{__mix__({self.name()})}}"'
            case "walrus":
                return f"({self.name()} := {inner()})"
            case _:
                # The target must be none of the comprehension's own.
                target, own = self._draw(st.permutations(NAMES))[:2]
                return f"[({target} := {in_comp()}) for {own} in [1, 2]]"

    def block(self, where: str, depth: int, least: int = 1) -> list[str]:
        lines: list[str] = []
        for _ in range(self._draw(st.integers(least, 4))):
            if self._left <= 0:
                break
            self._left -= 1
            lines += self.statement(where, depth)
        return lines or ["pass"]

    def statement(self, where: str, depth: int) -> list[str]:
        kinds = ["assign", "assign", "note", "note", "aug", "annotate", "unpack", "del", "expr"]
        if depth < 3:
            kinds += ["if", "for", "while", "with", "try", "guard", "def", "def", "class", "match"]
            kinds += ["async", "lambda", "generator"]
        if where == "module":
            kinds += ["import", "main", "star"] + (["return"] if depth else [])
        if where == "function":
            kinds += ["return"]
        walrus = where != "class"
        # In a class body, a walrus in a comprehension is no Python.
        value = lambda: self.expression(0 if walrus else 1, walrus)  # noqa: E731
        inside = lambda: indented(self.block(where, depth + 1))  # noqa: E731
        match self._one(*kinds):
            case "assign":
                return [f"{self.name()} = {value()}"]
            case "note":
                return [f"__note__({self.name()}, {value()})"]
            case "expr":
                return [value()]
            case "aug":
                # In place of an operator, which might fail: what it reads and binds is the same.
                name = self.name()
                return [f"{name} = __mix__({name}, {value()})"]
            case "annotate":
                return [f"{self.name()}: {self._one('int', 'str')} = {value()}"]
            case "unpack":
                return [f"{self.name()}, *{self.name()} = {value()}, {value()}, 1"]
            case "del":
                name = self.name()
                return [f"{name} = 1", f"del {name}"]
            case "if":
                orelse = ["else:", *inside()] if self._one(0, 1) else []
                return [f"if __mix__({value()}) % 2:", *inside(), *orelse]
            case "for":
                orelse = ["else:", *inside()] if self._one(0, 0, 1) else []
                return [f"for {self.name()} in [{value()}, 2]:", *inside(), *orelse]
            case "while":
                self._loops += 1
                k = f"_k{self._loops}"
                return [f"{k} = 2", f"while {k}:", f"    {k} = {k} - 1", *inside()]
            case "with":
                return [f"with __manager__({value()}) as {self.name()}:", *inside()]
            case "try":
                last = ["    raise ValueError(3)"] if self._one(0, 1) else []
                final = ["finally:", *inside()] if self._one(0, 0, 1) else []
                handler = [f"except ValueError as {self.name()}:", *inside()]
                return ["try:", *inside(), *last, *handler, *final]
            case "guard":
                return ["try:", f"    __note__({self.name()})", "except NameError:", *inside()]
            case "match":
                a, b = self._draw(st.permutations(NAMES))[:2]
                pattern = self._one(f"int({a})" if a != "K" else "int()", f"[{a}, *{b}]",
                                    f"{{'k': {a}, **{b}}}", f"str() as {a}", "0 | 1")  # fmt: skip
                other = ["    case _:", *indented(inside())] if self._one(0, 1) else []
                return [f"match {value()}:", f"    case {pattern}:", *indented(inside()), *other]
            case "lambda":
                return [f"{self.name()} = lambda *_, {self.name()}={value()}, **__: "
                        f"__note__({self.expression(1, False)})"]  # fmt: skip
            case "class":
                lines = [f"class {self.name()}:", *indented(self.block("class", depth + 1))]
                method = [
                    "    def m(self, *_):",
                    *indented(indented(self.function_body(depth + 2))),
                ]
                return lines + (method if self._one(0, 1) else [])
            case "import":
                return [self._one("import math as ", "from math import pi as ") + self.name()]
            case "star":
                return ["from keyword import *"]
            case "main":
                return ['if __name__ == "__main__":', *inside()]
            case "return":
                return [f"return {self.expression(1, False)}"]
            case kind:
                return self.function(kind, depth)

    def function(self, kind: str, depth: int) -> list[str]:
        decorator = [f"@__decorate__({self.name()})"] if self._one(0, 0, 1) else []
        name, argument = self.name(), self.name()
        head = f"def {name}({argument}={self.expression(2, False)}, *_, **__):"
        body = self.function_body(depth + 1)
        if kind == "async":
            head = "async " + head
        elif kind == "generator":
            body.append(f"yield {self.expression(2, False)}")
        called = [f"__call__({name})"] if self._one(0, 1) else []
        return [*decorator, head, *indented(body), *called]

    def function_body(self, depth: int) -> list[str]:
        declared = self._one("", "", "global", "nonlocal")
        if not declared:
            return self.block("function", depth)
        own = self.name()
        if declared == "global":
            return [f"global {own}", *self.block("function", depth)]
        inner = indented([f"nonlocal {own}", f"{own} = {self.expression(1, False)}"])
        return [f"{own} = 0", "def inner(*_):", *inner, "__call__(inner)", f"__note__({own})",
                *self.block("function", depth)]  # fmt: skip


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


@st.composite
def cells(draw: Any) -> tuple[str, dict[str, str]]:
    """A cell's text, and the kinds of the names that its notebook has."""
    kinds = {name: draw(st.sampled_from(list(NOTEBOOK))) for name in NAMES}
    # What a class body's name is mangled to.
    kinds["_K__p"] = kinds["__p"]
    return "\n".join(_Maker(draw).block("module", 0)), kinds


def in_the_notebook(source: str, kinds: Mapping[str, str]) -> list[str]:
    """What a cell does in the notebook: its trace, and how it ends."""
    names = {**notebook(kinds), "config": {}}
    with helpers() as helping:
        module = ModuleType("__main__")
        module.__dict__.update(names)

        def run() -> Any:
            exec(compile_cell(source, FILENAME), module.__dict__)
            body = module.__dict__.pop(BODY_NAME, None)
            return body() if body else None

        return _told(helping, module, run)


def on_a_worker(source: str, kinds: Mapping[str, str]) -> list[str]:
    """What it does with nothing but what was captured; raises what the capture raises."""
    capture = capture_cell(
        source, filename=FILENAME, label="Cell In[1]", namespace=notebook(kinds), first_line=1
    )
    values = {**load_values(capture.payload), **capture.large}
    with helpers() as helping:
        return _told(helping, None, lambda: run_program(capture.program, values))


def _told(helping: Helpers, module: ModuleType | None, run: Callable[[], Any]) -> list[str]:
    try:
        if module is None:
            end = f"returned {shown(run())}"
        else:
            with as_main(module):
                end = f"returned {shown(run())}"
    except TooLong:
        end = "went on"
    except RecursionError:
        end = "went on"
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
    return [*helping.trace, end]


def global_names(source: str) -> tuple[set[str], set[str], set[str]]:
    """Names that Python looks up among the globals, that it may look up, and that it binds."""
    reads: set[str] = set()
    maybe: set[str] = set()
    binds: set[str] = set()

    def look(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            name = symbol.get_name()
            outer = table.get_type() == "module" or symbol.is_global()
            if symbol.is_referenced() and outer:
                reads.add(name)
            elif symbol.is_referenced() and table.get_type() == "class":
                # It is looked up outside until the class body has bound it.
                maybe.add(name)
            if outer and (symbol.is_assigned() or symbol.is_imported()):
                binds.add(name)
        for child in table.get_children():
            look(child)

    look(symtable.symtable(source, FILENAME, "exec"))
    return reads, maybe, binds


def check_cell_program(source: str, kinds: dict[str, str]) -> str:
    """Compare a cell's capture with Python; gives what kind of cell it was.

    Raises
    ------
    AssertionError
        When a worker would do something else than the notebook, or the capture took or left what
        Python says otherwise about.
    """
    try:
        compile_cell(source, FILENAME)
    except SyntaxError as error:
        try:
            on_a_worker(source, kinds)
        except SyntaxError as found:
            assert (found.msg, found.lineno) == (error.msg, error.lineno)
            return "no Python"
        raise AssertionError("no Python was captured") from error
    names = notebook(kinds)
    try:
        there = on_a_worker(source, kinds)
    except CaptureError as error:
        missing = {line.split("`")[1] for line in error.detail.splitlines()}
        known = {n for n in missing if n in names or hasattr(builtins, n)}
        assert missing and not known, (error, known)
        if not has_return(source):
            reads, maybe, _ = global_names(source)
            assert missing <= reads | maybe, missing
        return "undefined names"
    here = in_the_notebook(source, kinds)
    if "went on" in (here[-1], there[-1]):
        shorter = min(len(here), len(there)) - 1
        assert here[:shorter] == there[:shorter]
        return "went on"
    assert here == there
    if not has_return(source):
        _check_table(source, names)
    return "ran"


def has_return(source: str) -> bool:
    """Whether the cell returns at its top level, where symtable does not follow."""
    try:
        compile(source, FILENAME, "exec")
    except SyntaxError:
        return True
    return False


def _names_in(code: CodeType) -> set[str]:
    nested = [_names_in(one) for one in code.co_consts if isinstance(one, CodeType)]
    loads = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF")
    return {i.argval for i in dis.get_instructions(code) if i.opname in loads}.union(*nested)


def _check_table(source: str, names: dict[str, Any]) -> None:
    capture = capture_cell(
        source, filename=FILENAME, label="Cell In[1]", namespace=names, first_line=1
    )
    taken = {row.name for row in capture.table}
    reads, maybe, binds = global_names(source)
    folded = {name for name in names if name != "__name__"}
    must = {n for n in (reads - binds) & folded if not (n.startswith("__") and n.endswith("__"))}
    # What Python itself leaves out, such as lines behind a return, reads nothing.
    must &= _names_in(compile_cell(source, FILENAME))
    assert must <= taken, must - taken
    # A name that is only deleted is looked up as well.
    assert taken <= (reads | maybe | binds) & folded, taken - reads
