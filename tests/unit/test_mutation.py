"""The mutation run: which changes it makes, and that its table fits the code."""

from __future__ import annotations

import ast

import pytest

from scripts.mutation import ROOT, Target, changes, targets

CODE = '''
"""Not changed: 1 < 2."""
LIMIT: int = 3
Both = A | B
def size(items: int | None = 0) -> "1 < 2":
    log.info("%d", 1 + 1)
    if items < LIMIT and not is_done(items):
        raise ValueError(f"{items + 1}")
    self.last = max(items, 2)
    return isinstance(items, A | B)
'''
EXPECTED = [
    "size: def size(items: int | None=0) -> '1 < 2': => def size(items: int | None=1) -> '1 < 2':",
    "LIMIT: int = 3 => LIMIT: int = 4",
    "size: if items < LIMIT and (not is_done(items)): => if items < LIMIT or not is_done(items):",
    "size: if items < LIMIT and (not is_done(items)): => if items <= LIMIT and (not is_done(items)):",
    "size: if items < LIMIT and (not is_done(items)): => if items < LIMIT and is_done(items):",
    "size: raise ValueError(f'{items + 1}') => pass",
    "size: self.last = max(items, 2) => pass",
    "size: self.last = max(items, 2) => self.last = max(items, 3)",
    "size: self.last = max(items, 2) => self.last = min(items, 2)",
    "size: return isinstance(items, A | B) => return isinstance(items, A)",
    "size: return isinstance(items, A | B) => return isinstance(items, B)",
]


def test_conditions_numbers_and_statements_are_changed_but_no_annotations_and_logs() -> None:
    tree = ast.parse(CODE)
    assert sorted(change.text for change in changes(tree)) == sorted(EXPECTED)
    assert ast.dump(tree) == ast.dump(ast.parse(CODE))


def test_the_tree_has_each_change_in_turn() -> None:
    tree = ast.parse("a < 1")
    assert [ast.unparse(tree) for _ in changes(tree)] == ["a <= 1", "a < 2"]


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.module)
def test_the_table_fits_the_code_and_the_tests(target: Target) -> None:
    assert all((ROOT / test).exists() for test in target.tests)
    unknown = target.explained.keys() - {
        change.text for change in changes(ast.parse(target.path.read_text()))
    }
    assert not unknown, "an explained change that cannot be made any more"
