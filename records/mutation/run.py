"""Mutation testing of the core: small changes of its code, of which some test has to fail.

    python records/mutation/run.py FOLDER --number 200 --seed 0

Each mutant is one change of one expression or statement of the optimizer, its engine or its parts.
It is made in the memory of a forked process that has loaded all tests; no file is changed. There
the tests that run the changed line go on, quick ones first, until one fails; a process that does
not end counts as a failure. FOLDER keeps which test runs which line, and the results: a second call
goes on where the first has ended.
"""

import argparse
import ast
import builtins
import copy
import functools
import importlib
import inspect
import json
import os
import random
import resource
import signal
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
CORE = ["vasso/optimizer.py", "vasso/engine/*.py", "vasso/parts/*.py"]
TESTS = [
    "contract",
    "engine",
    "numerics",
    "parts",
    *(f"test_{name}.py" for name in ("closed_forms", "identities", "passes", "properties")),
    *(f"test_{name}.py" for name in ("published", "schedules", "twins")),
]
SLOW = (  # more than they find
    "test_catalogue.py",
    "test_crossings.py",
    "test_getters.py",
    "test_goes_on.py",
    "test_held_objects.py",
    "test_plain_base.py",
    "test_sequences.py",
    "test_torch",
)
SWAPS: dict[type[ast.AST], list[type[ast.AST]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.Mod: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}
NAMES = (ast.Name, ast.Attribute, ast.Call)
"""Conditions that are negated; comparisons and `and` are changed by themselves."""


# -- mutants --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One change: the text between two places of a module is replaced.

    Attributes:
        lines: the lines of the statements of which one has to run for the change to be seen.
        start: offset into the file; so is `end`.
    """

    path: str
    line: int
    lines: range
    start: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.before.split())}  ->  {self.after}"

    def source(self) -> str:
        text = (PROJECT / self.path).read_bytes()
        return (text[: self.start] + self.after.encode() + text[self.end :]).decode()


def mutants_of(path: str) -> Iterator[Mutant]:
    """All mutants of a module."""
    text = (PROJECT / path).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, lines in nodes(ast.parse(text), range(1, len(starts))):
        for target, new in changed(node):
            start = starts[target.lineno - 1] + target.col_offset
            end = starts[target.end_lineno - 1] + target.end_col_offset
            after = ast.unparse(new) if isinstance(new, ast.AST) else new
            if isinstance(new, ast.expr) and not isinstance(new, ast.Constant):
                after = f"({after})"
            yield Mutant(path, target.lineno, lines, start, end, text[start:end].decode(), after)


def nodes(node: ast.AST, lines: range) -> Iterator[tuple[Any, range]]:
    """Expressions and statements that run; no annotations, decorators, messages or docstrings."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "exc", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or is_declaration(child):
                continue
            around = lines
            if isinstance(child, ast.FunctionDef):
                around = range(child.lineno, (child.end_lineno or 0) + 1)
            elif isinstance(child, ast.stmt) and in_function(node):
                around = range(child.lineno, child.lineno + 1)
                child.inside = True  # type: ignore[attr-defined]
            if isinstance(child, (ast.expr, ast.stmt)):
                yield child, around
            yield from nodes(child, around)


def in_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) or hasattr(node, "inside")


def is_declaration(node: ast.AST) -> bool:
    """Imports, names of types, texts."""
    if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
        return True
    doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return doc or isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr))


def changed(node: Any) -> Iterator[tuple[Any, Any]]:
    """What may be replaced in a node, and by what: new code as a tree or as text."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in SWAPS[type(op)]:
                    yield node, with_field(node, "ops", [*ops[:i], other(), *ops[i + 1 :]])
        case ast.BinOp(op=op) | ast.BoolOp(op=op):
            for other in SWAPS.get(type(op), []):
                yield node, with_field(node, "op", other())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node, node.operand
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, ast.Constant(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test) if isinstance(test, NAMES):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() | ast.SetComp():
            for condition in (test for part in node.generators for test in part.ifs):
                yield condition, ast.Constant(True)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield node, "return None"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield node, "pass"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield node, "pass"


def with_field(node: Any, name: str, value: Any) -> Any:
    other = copy.deepcopy(node)
    setattr(other, name, value)
    return ast.fix_missing_locations(other)


# -- changed code in a running process ------------------------------------------------------------


def transplant(path: str, source: str) -> None:
    """Gives the functions and constants of a loaded module the code of another source."""
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    old = importlib.import_module(name)
    new = types.ModuleType(name)
    new.__file__ = old.__file__
    exec(compile(source, str(old.__file__), "exec"), vars(new))
    transplant_members(old, new, name)


def transplant_members(old: Any, new: Any, module: str) -> None:
    for name, value in list(vars(old).items()):
        other = vars(new).get(name)
        if inspect.isclass(value) and value.__module__ == module and inspect.isclass(other):
            transplant_members(value, other, module)
        elif function_of(value) and function_of(other):
            to, source = function_of(value), function_of(other)
            if to.__module__ == module and to.__code__ != source.__code__:
                to.__code__ = source.__code__
            if to.__module__ == module or inspect.isclass(old):  # __init__ of a dataclass
                to.__defaults__, to.__kwdefaults__ = source.__defaults__, source.__kwdefaults__
        elif is_constant(name, value) and name in vars(new) and repr(value) != repr(other):
            if inspect.isclass(old):
                setattr(old, name, other)
            for user in [m for n, m in sys.modules.items() if n.startswith("vasso")]:
                if not inspect.isclass(old) and vars(user).get(name) is value:
                    setattr(user, name, other)


def function_of(value: Any) -> Any:
    """The plain function in a method, a property or a decorated function; None if there is none."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, types.FunctionType) else None


def is_constant(name: str, value: object) -> bool:
    return isinstance(value, (int, float, str, tuple, dict, list)) and not name.startswith("__")


def noting_lines(source: str) -> str:
    """The source with a call before each statement of a function that notes its line."""

    class Notes(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
            for inner in ast.walk(node):
                for name in ("body", "orelse", "finalbody"):
                    block = getattr(inner, name, None)
                    if isinstance(block, list) and not isinstance(inner, ast.ClassDef):
                        setattr(inner, name, [x for s in block for x in (self.note(s), s)])
            return node

        @staticmethod
        def note(statement: ast.stmt) -> ast.stmt:
            return ast.parse(f"__ran__(__file__, {statement.lineno})").body[0]

    return ast.unparse(ast.fix_missing_locations(Notes().visit(ast.parse(source))))


# -- runs -----------------------------------------------------------------------------------------


class Trial:
    """A plugin of pytest that runs the collected tests on mutants and not on the project as it is.

    Attributes:
        lines: for each test its seconds and the lines of the core that it runs.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.failed = given, ""
        self.lines: dict[str, tuple[float, dict[str, list[int]]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        paths = sorted(str(p.relative_to(PROJECT)) for glob in CORE for p in PROJECT.glob(glob))
        coverage = self.given.folder / "lines.json"
        results = self.given.folder / f"mutants-{self.given.first}.jsonl"
        if coverage.exists():
            self.lines = json.loads(coverage.read_text())
        else:
            self.learn_lines(session.items, paths)
            coverage.write_text(json.dumps(self.lines))
        mutants = [mutant for path in paths for mutant in mutants_of(path)]
        random.Random(self.given.seed).shuffle(mutants)
        rows = results.read_text().splitlines() if results.exists() else []
        known = {row["name"] for row in map(json.loads, rows)}
        print(f"\n{len(mutants)} mutants in {len(paths)} modules", file=sys.stderr)
        for mutant in mutants[self.given.first : self.given.number : self.given.every]:
            if mutant.name in known:
                continue
            began = time.monotonic()
            outcome, by = self.fork(mutant, self.order(session.items, mutant))
            took = round(time.monotonic() - began, 1)
            row = {"name": mutant.name, "outcome": outcome, "by": by, "seconds": took}
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{outcome:9} {took:6.1f} s  {mutant.name}", file=sys.stderr, flush=True)
        return True

    def run(self, items: list[pytest.Item]) -> bool:
        """Runs tests until one fails."""
        self.failed = ""
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return False
        return True

    def learn_lines(self, items: list[pytest.Item], paths: list[str]) -> None:
        """Runs every test once and notes which lines it runs."""
        ran: set[tuple[str, int]] = set()
        builtins.__ran__ = lambda file, line: ran.add((file, line))  # type: ignore[attr-defined]
        sources = {path: (PROJECT / path).read_text() for path in paths}
        for path, source in sources.items():
            transplant(path, noting_lines(source))
        for i, item in enumerate(items):
            ran.clear()
            began = time.process_time()
            following = items[i + 1] if i + 1 < len(items) else None
            self.failed = ""
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                print("left out:", self.failed, file=sys.stderr, flush=True)
                continue
            lines = defaultdict(list)
            for file, line in sorted(ran):
                lines[str(Path(file).relative_to(PROJECT))].append(line)
            self.lines[item.nodeid] = (time.process_time() - began, dict(lines))
        for path, source in sources.items():
            transplant(path, source)

    def order(self, items: list[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        """The tests that run the changed line: quick ones of every file first."""
        seconds, by_file = {}, defaultdict(list)
        for item in items:
            took, lines = self.lines.get(item.nodeid, (0.0, {}))
            if any(line in mutant.lines for line in lines.get(mutant.path, [])):
                seconds[item.nodeid] = took
                by_file[item.path].append(item)
        ranked = []
        for file, some in by_file.items():
            some.sort(key=lambda item: seconds[item.nodeid])
            ranked += [(i // 5, str(file), i, item) for i, item in enumerate(some)]
        chosen, total = [], 0.0
        for *_, item in sorted(ranked, key=lambda row: row[:3]):
            total += seconds[item.nodeid]
            if total < self.given.seconds:
                chosen.append(item)
        return chosen

    def fork(self, mutant: Mutant, items: list[pytest.Item]) -> tuple[str, str]:
        """Runs tests on a mutant in another process: how it ended, and which test failed."""
        if not items:
            return "not run", ""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            self.in_child(mutant, items, write)
        os.close(write)
        ends = time.monotonic() + self.given.limit
        while time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                with os.fdopen(read) as file:
                    by = file.read()
                return ("survived" if status == 0 else "killed"), by
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        return "timeout", ""

    def in_child(self, mutant: Mutant, items: list[pytest.Item], write: int) -> None:
        code = 1
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            cpu = int(10 * self.given.seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
            transplant(mutant.path, mutant.source())
            code = 0 if self.run(items) else 1
            os.write(write, self.failed.encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode()[:300])
        finally:
            os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="for the results")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first mutant to run")
    parser.add_argument("--every", type=int, default=1, help="2: every other mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="of tests for one mutant")
    parser.add_argument("--limit", type=float, default=1200, help="seconds until a timeout")
    parser.add_argument("--all", action="store_true", help="the slow tests too")
    given = parser.parse_args()
    given.folder = given.folder.absolute()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(PROJECT)
    tests = [f"tests/{path}" for path in TESTS]
    options = [] if given.all else [f"--ignore-glob=*/{name}*" for name in SLOW]
    options += ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow and not ranks"]
    pytest.main([*options, *tests], plugins=[Trial(given)])


if __name__ == "__main__":
    main()
