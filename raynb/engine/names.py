"""Names that a cell takes from the notebook: Python's own answer, and the order of its lines."""

from __future__ import annotations

import ast
import dis
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from raynb.worker.program import BODY_NAME

#: What each worker has of its own.
WORKER_NAMES = frozenset({"config", "exit", "quit"})

_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
_BINDS = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_OWN_READ = "read of a class's own name"
#: The same in a class that a function makes, whose lines :class:`_Flow` does not follow.
_LOCAL_OWN_READ = "read of a local class's own name"
_DELETES = frozenset({"DELETE_NAME", "DELETE_GLOBAL"})


@dataclass
class Names:
    """Names that the cell takes from outside, each with the line of its first use."""

    required: dict[str, int]
    optional: dict[str, int]
    bound: set[str]
    star_import: bool


def find_names(tree: ast.Module, code: CodeType) -> Names:
    """Sort the names that the cell reads from outside into required and optional ones.

    Which names are global, and on which lines, is read from the compiled code, so that it is
    Python's own answer. The order of reading and binding comes from the syntax tree.
    """
    reads: dict[str, list[int]] = {}
    read_in_functions: set[str] = set()
    in_classes: dict[str, int] = {}
    in_local_classes: dict[str, int] = {}
    deleted: dict[str, int] = {}
    bound: set[str] = set()
    bound_in_functions: set[str] = set()
    for opname, name, line, nested in _global_accesses(code):
        if opname == _LOCAL_OWN_READ:
            in_local_classes[name] = min(line, in_local_classes.get(name, line))
        elif opname == _OWN_READ:
            in_classes[name] = min(line, in_classes.get(name, line))
        elif opname in _READS:
            reads.setdefault(name, []).append(line)
            if nested:
                read_in_functions.add(name)
        elif opname.startswith("STORE"):
            bound.add(name)
            if nested:
                bound_in_functions.add(name)
        else:
            deleted.setdefault(name, line)
    flow = _Flow(bound_in_functions, read_in_functions)
    flow.visit(tree)
    guarded = _guarded_lines(tree)
    required: dict[str, int] = {}
    optional: dict[str, int] = {}
    for name, lines in reads.items():
        if name in WORKER_NAMES or (name.startswith("__") and name.endswith("__")):
            continue
        if name not in bound:
            surely = not guarded.issuperset(lines)
        elif name in flow.surely_early:
            surely = True
        elif name in flow.possibly_early | (read_in_functions - flow.bound):
            surely = False
        else:
            continue
        (required if surely else optional)[name] = min(lines)
    for name, line in in_classes.items():
        if name not in required and name in flow.surely_early | flow.possibly_early:
            optional[name] = min(line, optional.get(name, line))
    for name, line in in_local_classes.items():
        if name not in required:
            optional[name] = min(line, optional.get(name, line))
    for name in deleted.keys() - bound - required.keys():
        optional[name] = min(deleted[name], optional.get(name, deleted[name]))
    star = any(isinstance(n, ast.alias) and n.name == "*" for n in ast.walk(tree))
    return Names(required, optional, bound, star)


def _global_accesses(code: CodeType, local: bool = False) -> Iterator[tuple[str, str, int, bool]]:
    """Yield each access to a global name: operation, name, line, and whether it is nested.

    ``local`` tells that a function makes the code's function or class.
    """
    top_level = code.co_name == BODY_NAME
    class_body = not top_level and not code.co_flags & inspect.CO_OPTIMIZED
    own: set[str] = set()
    for instruction in dis.get_instructions(code):
        opname, name = instruction.opname, instruction.argval
        if class_body and opname in ("STORE_NAME", "DELETE_NAME"):
            own.add(name)
        elif opname in _READS | _BINDS | _DELETES:
            line = instruction.positions.lineno if instruction.positions else None
            if name not in own:
                yield opname, name, line or 1, not top_level
            elif opname in _READS:
                # The class's own, unless the lines that bind it were passed by.
                yield _LOCAL_OWN_READ if local else _OWN_READ, name, line or 1, not top_level
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_accesses(constant, local or not (top_level or class_body))


def bound_name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return name
        case ast.alias(name=name, asname=asname):
            return asname or name.partition(".")[0]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.MatchMapping(rest=name):
            return name
    return None


def _catches_name_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Try) and any(
        isinstance(child, ast.Name) and child.id == "NameError"
        for handler in node.handlers
        if handler.type
        for child in ast.walk(handler.type)
    )


def _guarded_lines(tree: ast.Module) -> set[int]:
    """Collect the lines on which an undefined name is caught by the cell itself."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and _catches_name_error(node)
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


class _Flow(ast.NodeVisitor):
    """Follows the cell's top level to tell which names it reads before it binds them.

    Loops, ``with`` and ``try`` bodies count as executed, branches of ``if`` and ``match`` don't.
    A function's body may run wherever the function is named.

    Parameters
    ----------
    maybe : set of str
        Names that functions bind, whenever they run.
    in_functions : set of str
        Names that functions read.

    Attributes
    ----------
    bound : set of str
        Names that are bound on every path so far.
    surely_early : set of str
        Names read where nothing before can have bound them.
    possibly_early : set of str
        Names read where something before binds them on some paths only.
    """

    def __init__(self, maybe: set[str], in_functions: set[str]) -> None:
        self.bound: set[str] = set()
        self.surely_early: set[str] = set()
        self.possibly_early: set[str] = set()
        self._maybe = set(maybe)
        self._in_functions = in_functions
        self._reads_of: dict[str, set[str]] = {}
        self._guards = 0
        #: In a class body: its names are no globals, but for those it declares so.
        self._in_class = False
        self._globals: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        super().visit(node)
        name = bound_name(node)
        if name is not None:
            self._bind(name)

    def _key(self, name: str) -> str:
        """How a name that is bound here is kept: a class's own apart from the globals."""
        return f".{name}" if self._in_class and name not in self._globals else name

    def _bind(self, name: str) -> None:
        key = self._key(name)
        self.bound.add(key)
        self._maybe.add(key)

    def _read(self, name: str) -> None:
        if name not in self.bound and self._key(name) not in self.bound:
            early = self._guards or {name, self._key(name)} & self._maybe
            (self.possibly_early if early else self.surely_early).add(name)

    def _define(self, name: str, node: ast.AST) -> None:
        """Note what a function, or a class's methods, read when they run."""
        reads = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & self._in_functions
        self._reads_of[name] = self._reads_of.get(name, set()) | reads

    def _may_run(self, names: set[str]) -> None:
        """Take the reads of functions that may be called now, and of those that these name."""
        pending, seen = set(names), set[str]()
        while pending:
            name = pending.pop()
            seen.add(name)
            if name not in self.bound:
                self.possibly_early.add(name)
            pending |= self._reads_of.get(name, set()) - seen

    def _visit_all(self, *nodes: ast.AST | Sequence[ast.AST | None] | None) -> None:
        for node in nodes:
            if isinstance(node, ast.AST):
                self.visit(node)
            elif node is not None:
                self._visit_all(*node)

    def _visit_branches(self, branches: list[list[ast.AST]]) -> None:
        start, ends = self.bound, []
        for branch in branches:
            self.bound = set(start)
            self._visit_all(branch)
            if not branch or not isinstance(
                branch[-1], ast.Return | ast.Raise | ast.Continue | ast.Break
            ):
                ends.append(self.bound)
        self.bound = set.intersection(*ends) if ends else start

    def visit_Global(self, node: ast.Global) -> None:
        self._globals.update(node.names)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id)
            self._may_run(self._reads_of.get(node.id, set()))
        elif isinstance(node.ctx, ast.Del):
            self.bound.discard(self._key(node.id))

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Lambda):
            self._visit_all(node.value.args.defaults, node.value.args.kw_defaults)
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._define(target.id, node.value)
            self._visit_all(node.targets)
        else:
            self._visit_all(node.value, node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id)
        self._visit_all(node.value, node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._visit_all(node.value, node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all(node.value, node.target)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._visit_branches([[*node.body], [*node.orelse]])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._visit_branches([[node.body], [node.orelse]])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        for value in node.values[1:]:
            self._visit_branches([[value], []])

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        if node.msg is not None:
            self._visit_branches([[node.msg], []])

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        branches: list[list[ast.AST]] = [
            [case.pattern, *([case.guard] if case.guard else []), *case.body] for case in node.cases
        ]
        last = node.cases[-1]
        if last.guard or not isinstance(last.pattern, ast.MatchAs) or last.pattern.pattern:
            branches.append([])
        self._visit_branches(branches)

    def _visit_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        # A name that the loop binds further down may be bound from the second round on.
        self._maybe.update(map(self._key, filter(None, map(bound_name, ast.walk(node)))))
        if isinstance(node, ast.While):
            self.visit(node.test)
        else:
            self._visit_all(node.iter, node.target)
        self._visit_all(node.body, node.orelse)

    visit_For = visit_AsyncFor = visit_While = _visit_loop

    def _visit_try(self, node: ast.Try | ast.TryStar) -> None:
        start = set(self.bound)
        guards = _catches_name_error(node)
        self._guards += guards
        self._visit_all(node.body)
        self._guards -= guards
        self._visit_all(node.orelse)
        end = self.bound
        for handler in node.handlers:
            self.bound = start | ({self._key(handler.name)} if handler.name else set())
            self._visit_all(handler.type, handler.body)
        if self._in_class:  # behind a handler its name is the global one again
            end = end - {self._key(handler.name) for handler in node.handlers if handler.name}
        self.bound = end
        self._visit_all(node.finalbody)

    visit_Try = visit_TryStar = _visit_try

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all(node.decorator_list, node.args.defaults, node.args.kw_defaults)
        self._define(node.name, node)
        if node.decorator_list:
            self._may_run(self._reads_of[node.name])

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all(node.args.defaults, node.args.kw_defaults)
        # Whoever gets it may call it at once.
        self._define("<lambda>", node)
        self._may_run(self._reads_of.pop("<lambda>"))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.decorator_list, node.bases, node.keywords)
        outer = {name for name in self.bound if name.startswith(".")}
        before = self._in_class, self._globals
        self.bound -= outer
        self._in_class, self._globals = True, set()
        self._visit_all(node.body)
        self._in_class, self._globals = before
        self.bound = {name for name in self.bound if not name.startswith(".")} | outer
        self._define(node.name, node)
        if node.decorator_list or node.bases or node.keywords:
            self._may_run(self._reads_of[node.name])

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        outer = set(self.bound)
        targets: set[str | None] = set()
        for generator in node.generators:
            self._visit_all(generator.iter, generator.target, generator.ifs)
            targets.update(map(bound_name, ast.walk(generator.target)))
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self._visit_all(*parts)
        self.bound -= {self._key(name) for name in targets if name} - outer

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension
