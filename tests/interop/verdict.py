"""What drivers report: a line for each scenario, PASS or FAIL behind them."""

from __future__ import annotations

import re
from collections.abc import Callable

from skylark.processes import GroupProcess

Results = dict[str, str | None]
"""What went wrong in each scenario, or None."""

_RESULT = re.compile(r"^RESULT (\S+) (?:ok|failed: (.*))$", re.MULTILINE)
_VERDICT = re.compile(r"^(?:PASS|FAIL)$", re.MULTILINE)


def results(process: GroupProcess, timeout_s: float) -> Results:
    """Wait for a driver's end; what went wrong in each scenario, or None.

    The exit code and the verdict must agree with it. Raises ProcessFailed after `timeout_s`.
    """
    code = process.wait(timeout_s)
    found = {name: reason or None for name, reason in _RESULT.findall(process.log_text())}
    passed = bool(found) and not any(found.values())
    # Threads of the client may have the last word, after the verdict.
    verdicts = _VERDICT.findall(process.log_text())
    assert (verdicts, code) == ((["PASS"], 0) if passed else (["FAIL"], 1)), process.log_tail()
    return found


class Outcomes:
    """What came of the scenarios of a driver, all of which are run together.

    Whoever asks a second time about one that failed, as the next attempt of a test does, has it run again.
    """

    def __init__(self, run: Callable[..., Results]) -> None:
        """`run` is given the scenarios that are wanted, none for all; it uses other names each time."""
        self._run = run
        self._asked: set[str] = set()
        self.found = run()

    def of(self, scenario: str) -> str | None:
        """What went wrong, None if nothing did."""
        if scenario in self._asked and self._fault(scenario) is not None:
            self.found |= self._run(scenario)
        self._asked.add(scenario)
        return self._fault(scenario)

    def _fault(self, scenario: str) -> str | None:
        return self.found.get(scenario, f"did not come to its end; there are {sorted(self.found)}")
