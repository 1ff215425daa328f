"""The tests of a requirement fail when its behaviour is taken away: the table fits, and mutants are noticed.

CI applies six mutants, other ones every day; the number of the day is their seed and is printed with their
names. `SKYLARK_MUTANT_SEED=739572 python -m pytest tests/mutants` repeats those of a day. All run nightly.
"""

from __future__ import annotations

import os
import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.runner import ROOT, RUN_TIMEOUT_S, survivors
from tests.mutants.table import MUTANTS

ROTATING = 6
SEED = int(os.environ.get("SKYLARK_MUTANT_SEED") or datetime.now(UTC).toordinal())


def name(mutant: Mutant) -> str:
    return f"SF-{mutant.row:03}"


def name_with_seed(mutant: Mutant) -> str:
    return f"seed-{SEED}-{name(mutant)}"


def test_each_row_has_one_mutant_in_order() -> None:
    rows = [mutant.row for mutant in MUTANTS]
    assert rows == sorted(set(rows))


@pytest.mark.parametrize("mutant", MUTANTS, ids=name)
def test_a_mutant_fits_the_code_and_the_tests(mutant: Mutant) -> None:
    assert (ROOT / "src" / "skylark" / mutant.file).read_text().count(mutant.text) == 1
    assert mutant.text != mutant.replacement
    assert mutant.tests
    for test in mutant.tests:
        file, _, function = test.partition("::")
        assert re.search(rf"def {function.partition('[')[0]}\(", (ROOT / "tests" / file).read_text()), test
        assert f"{mutant.row:03}" in function, "a test of the row has its number"


@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.parametrize("mutant", random.Random(SEED).sample(MUTANTS, ROTATING), ids=name_with_seed)
def test_a_mutant_of_the_day_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    assert survivors(mutant, tmp_path) == []


@pytest.mark.nightly
@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.parametrize("mutant", MUTANTS, ids=name)
def test_every_mutant_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    assert survivors(mutant, tmp_path) == []
