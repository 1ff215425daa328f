"""What drivers report: a line for each scenario, PASS or FAIL behind them."""

from __future__ import annotations

import re

from skylark.bench.peers.process import GroupProcess

_RESULT = re.compile(r"^RESULT (\S+) (?:ok|failed: (.*))$", re.MULTILINE)
_VERDICT = re.compile(r"^(?:PASS|FAIL)$", re.MULTILINE)


def results(process: GroupProcess, timeout_s: float) -> dict[str, str | None]:
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
