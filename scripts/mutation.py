"""Change a module in one place at a time, and list the changes that its unit tests do not notice.

python -m scripts.mutation client.retry           # the modules of mutation.toml; all without arguments
python -m scripts.mutation --sample 40 --jobs 2   # 40 changes of each, drawn with a fixed seed

Not changed are annotations, decorators, texts and log calls. mutation.toml lists for each module its tests
and the changes that no test can notice, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import random
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("mutation.toml")
SEED = 28
TIMEOUT_S_MIN = 30
TIMEOUTS_OF_BASE = 5
OURS = ("skylark", "tests", "conftest", "test_")
"""Names of modules that a child imports anew; third-party ones are shared."""
PYTEST = (
    "-x", "-q", "-m", "not nightly", "--hypothesis-profile", "quick", "-n", "0",
    "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
INNER = ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list")
"""Fields of a statement that are not shown with it."""
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
REMOVABLE = (ast.Delete, ast.Raise, ast.Assert)


@dataclass(frozen=True)
class Change:
    """One change of a module: `text` names it, also in mutation.toml; `line` is where it is."""

    line: int
    text: str


@dataclass(frozen=True)
class Target:
    """A module to change, and its tests."""

    module: str
    tests: tuple[str, ...]
    explained: dict[str, str]
    """Changes that no test can notice, with the reason."""
    tried: int
    """In the last run, without the explained ones."""
    noticed: int

    @property
    def path(self) -> Path:
        return ROOT / "src" / "skylark" / f"{self.module.replace('.', '/')}.py"


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Return what a node may be replaced by."""
    match node:
        case ast.Compare(ops=[only]) if type(only) in OPPOSITES:
            yield _copy(node, ops=[OPPOSITES[type(only)]()])
        case ast.Compare(ops=[first, *others]):
            yield _copy(node, ops=[OPPOSITES[type(first)](), *others])
            yield _copy(node, ops=[first, *(OPPOSITES[type(each)]() for each in others)])
        case ast.BinOp() if _is_union(node):  # one type less
            yield node.left
            if isinstance(node.left, ast.Name):
                yield node.right
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(node.op) in OPPOSITES:
            yield _copy(node, op=OPPOSITES[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool(value)):
            yield _copy(node, value=not value)
        case ast.Constant(value=int(value) | float(value)):
            if value + 1 != value:
                yield _copy(node, value=value + 1)
        case ast.Name(id=name) if name in NAMES:
            yield _copy(node, id=NAMES[name])
        case ast.Break():
            yield ast.copy_location(ast.Continue(), node)
        case ast.Continue():
            yield ast.copy_location(ast.Break(), node)
        case ast.If(test=ast.Name() | ast.Call() | ast.Attribute() as test):
            yield _copy(node, test=ast.copy_location(ast.UnaryOp(ast.Not(), test), test))
        case ast.IfExp(test=ast.Name() | ast.Call() | ast.Attribute() as test):
            yield _copy(node, test=ast.copy_location(ast.UnaryOp(ast.Not(), test), test))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.copy_location(ast.Pass(), node)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.copy_location(ast.Pass(), node)
        case _ if isinstance(node, REMOVABLE):
            yield ast.copy_location(ast.Pass(), node)


def _copy(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_union(node: ast.AST) -> bool:
    """Return whether it is `A | B` of types."""
    match node:
        case ast.BinOp(op=ast.BitOr(), right=ast.Name(id=name)):
            return name[0].isupper()
    return False


def is_left_alone(field: str, node: ast.AST) -> bool:
    """Return whether nothing below a node is changed: it says nothing about behaviour."""
    if field in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr | ast.alias):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and _is_union(node.value):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("log.")


def changes(node: ast.AST, around: ast.AST | None = None, function: str = "") -> Iterator[Change]:
    """Return every change below a node, which is inside the statement `around` of a function.

    The tree has the current change until the next one is asked for.
    """
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or is_left_alone(field, child):
                continue
            statement = child if isinstance(child, ast.stmt) else around
            for variant in variants(child):
                before = _text(statement)
                _put(node, field, index, variant)
                after = _text(variant if statement is child else statement)
                yield Change(getattr(child, "lineno", 0), f"{function}{before} => {after}")
                _put(node, field, index, child)
            inner = f"{child.name}: " if isinstance(child, FUNCTION) else function
            yield from changes(child, statement, inner)


def _put(parent: ast.AST, field: str, index: int, node: ast.AST) -> None:
    value = getattr(parent, field)
    if isinstance(value, list):
        value[index] = node
    else:
        setattr(parent, field, node)


def _text(node: ast.AST | None) -> str:
    """Return the code of a statement without the statements inside it."""
    assert node is not None
    return ast.unparse(_copy(node, **{name: [] for name in INNER if hasattr(node, name)}))


class Changed(importlib.abc.Loader, importlib.abc.MetaPathFinder):
    """Imports one module from a changed tree."""

    def __init__(self, target: Target, tree: ast.Module) -> None:
        self._name = f"skylark.{target.module}"
        self._path = target.path
        self._tree = tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        code = compile(ast.fix_missing_locations(self._tree), self._path, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102


def begin(target: Target, tree: ast.Module) -> int:
    """Run the tests of a target in a child that imports this tree; return its process id."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    sys.meta_path.insert(0, Changed(target, tree))
    os._exit(int(pytest.main([*PYTEST, *target.tests])))


class Children:
    """At most `jobs` runs of tests at a time. A change that makes them wait for ever is noticed."""

    def __init__(self, jobs: int, timeout_s: float) -> None:
        self.survivors: list[Change] = []
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._running: dict[int, tuple[Change, float]] = {}

    def add(self, child: int, change: Change) -> None:
        """Add a run; wait until another one may begin."""
        self._running[child] = change, time.monotonic() + self._timeout_s
        self.wait(self._jobs - 1)

    def wait(self, left: int = 0) -> None:
        """Wait until only so many are running."""
        while len(self._running) > left:
            for child, (change, deadline) in list(self._running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if not ended and time.monotonic() > deadline:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    del self._running[child]
                elif ended:
                    del self._running[child]
                    if status == 0:
                        self.survivors.append(change)
            time.sleep(0.005)

    def kill(self) -> None:
        """End what is running, after Ctrl-C."""
        for child in self._running:
            os.killpg(child, signal.SIGKILL)


def share_imports(target: Target) -> None:
    """Import what the tests need from others once, for all children."""
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *target.tests])
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        del sys.modules[name]


def base_time_s(target: Target, tree: ast.Module) -> float:
    """Return how long the tests take without a change. Raises SystemExit if they fail."""
    started = time.monotonic()
    _, status = os.waitpid(begin(target, tree), 0)
    if status != 0:
        raise SystemExit(f"{target.module}: tests fail without a change: pytest {' '.join(target.tests)}")
    return time.monotonic() - started


def run(target: Target, sample: int | None, jobs: int) -> None:
    """Print how many changes of a module are noticed, and those that are not."""
    tree = ast.parse(target.path.read_text())
    share_imports(target)
    base_s = base_time_s(target, tree)
    every = list(changes(tree))
    wanted = [number for number, change in enumerate(every) if change.text not in target.explained]
    explained = len(every) - len(wanted)
    if sample is not None:
        wanted = random.Random(SEED).sample(wanted, min(sample, len(wanted)))  # noqa: S311
    children = Children(jobs, max(TIMEOUT_S_MIN, TIMEOUTS_OF_BASE * base_s))
    try:
        for number, change in enumerate(changes(tree)):
            if number in wanted:
                children.add(begin(target, tree), change)
        children.wait()
    finally:
        children.kill()
    alive = sorted(children.survivors, key=lambda each: each.line)
    noticed = f"{len(wanted) - len(alive)} of {len(wanted)} noticed, {explained} explained"
    print(f"{target.module}: {noticed}; tests take {base_s:.1f} s", flush=True)  # noqa: T201
    for change in alive:
        print(f"  line {change.line}: {change.text}", flush=True)  # noqa: T201


def targets() -> list[Target]:
    """Return the table's modules."""
    return [_target(name, row) for name, row in tomllib.loads(TABLE.read_text()).items()]


def _target(name: str, row: dict[str, Any]) -> Target:
    explained = {each["change"]: each["reason"] for each in row.get("explained", ())}
    return Target(name, tuple(row["tests"]), explained, row["tried"], row["noticed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)
    for target in targets():
        if not options.modules or target.module in options.modules:
            run(target, options.sample, options.jobs)


if __name__ == "__main__":
    main()
