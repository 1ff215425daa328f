"""How long a person waits for the command line: help, an error, a server that is ready; beside bare Python.

python -m benchmarks.cli
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial

from benchmarks._common import ratio, report, side_by_side

ROUNDS = 9
SKYLARK = (sys.executable, "-m", "skylark")
COMMANDS: dict[str, Sequence[str]] = {
    "python": (sys.executable, "-c", "pass"),
    "python with typer": (sys.executable, "-c", "import typer.main"),
    "skylark --help": (*SKYLARK, "--help"),
    "skylark topic create --help": (*SKYLARK, "topic", "create", "--help"),
    "skylark --version": (*SKYLARK, "--version"),
    "skylark topic list, nobody there": (*SKYLARK, "topic", "list", "--namesrv", "127.0.0.1:1"),
    "skylark send, nobody there": (*SKYLARK, "send", "orders", "hello", "--namesrv", "127.0.0.1:1"),
    "skylark store info, no such directory": (*SKYLARK, "store", "info", "nowhere"),
}
HELP_AIM_US = 300_000
READY_AIM_US = 1_000_000


def run(words: Sequence[str]) -> int:
    """One command to its end."""
    subprocess.run(words, capture_output=True, check=False)
    return 1


def ready_s() -> float:
    """Seconds from the command `skylark serve`, on a new directory, to the line that says ready."""
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "metrics_port=0")
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        words = (*SKYLARK, "serve", "--data", directory, *ports)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            for line in server.stdout:
                if "broker broker-a on" in line:
                    break
            taken = time.perf_counter() - started
            server.terminate()
    return taken


def main() -> None:
    """Print the JSON."""
    os.environ.setdefault("COLUMNS", "100")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules that were changed would be compiled each time
    cells = {name: partial(run, words) for name, words in COMMANDS.items()}
    for cell in cells.values():
        cell()  # bytecode and page cache
    result = side_by_side(cells, ROUNDS)
    taken = [ready_s() * 1e6 for _ in range(ROUNDS // 2)]
    result["skylark serve, until it is ready"] = {
        "best_us": round(min(taken), 3),
        "median_us": round(statistics.median(taken), 3),
    }
    ratios = {
        "skylark --help / python with typer": ratio(result, "skylark --help", "python with typer"),
        "skylark --help / aim": round(result["skylark --help"]["best_us"] / HELP_AIM_US, 2),
        "ready / aim": round(result["skylark serve, until it is ready"]["best_us"] / READY_AIM_US, 2),
    }
    report("cli", {"load_average": os.getloadavg()[0], "times": result, "ratios": ratios})


if __name__ == "__main__":
    main()
