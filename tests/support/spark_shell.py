"""Runs `skylark spark` commands one after the other in a process of its own, so that they share one JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

COMMAND_TIMEOUT_S = 300


class SparkShell:
    """Sends commands to the process, and returns what they printed."""

    def __init__(self, process: subprocess.Popen[str], answers: IO[str], log: Path) -> None:
        self._process = process
        self._answers = answers
        self._log = log

    def run(self, *words: object, code: int = 0) -> str:
        """Run `skylark spark` with these words; return what it printed on both streams."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(["spark", *map(str, words)]) + "\n")
        self._process.stdin.flush()
        line = self._answers.readline()
        assert line, f"the process has ended:\n{self._log.read_text()[-4000:]}"
        answer = json.loads(line)
        assert answer["code"] == code, answer["text"]
        return str(answer["text"])

    def json(self, *words: object) -> dict[str, Any]:
        """Run with `--json`; return the summary, which is the last line."""
        lines = [line for line in self.run(*words, "--json").splitlines() if line.startswith("{")]
        found = json.loads(lines[-1])
        assert isinstance(found, dict)
        return found


@contextmanager
def spark_shell(log: Path) -> Iterator[SparkShell]:
    reading, writing = os.pipe()
    with log.open("wb") as output, os.fdopen(reading) as answers:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.support.spark_shell", str(writing)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        try:
            yield SparkShell(process, answers, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the JVM
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def serve(answers: int) -> None:
    """Run the commands that come in, a JSON list in each line."""
    from typer.testing import CliRunner

    from skylark.cli.main import app

    os.set_inheritable(answers, False)  # else the JVM would keep it open
    with os.fdopen(answers, "w") as out:
        for line in sys.stdin:
            signal.alarm(COMMAND_TIMEOUT_S)
            result = CliRunner().invoke(app, json.loads(line))
            signal.alarm(0)
            out.write(json.dumps({"code": result.exit_code, "text": result.output}) + "\n")
            out.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
