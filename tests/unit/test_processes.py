"""Process groups with time limits that end with their parent; free ports."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skylark import processes
from skylark.processes import PORTS, GroupProcess, PortReservation, ProcessFailed, free_ports, python_command

SPAWNS_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
time.sleep(60)
"""


def test_process_over_its_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    with GroupProcess([sys.executable, "-c", SPAWNS_A_CHILD], log=tmp_path / "log") as process:
        process.wait_until(lambda: "child" in process.log_text(), "a child", 30)
        child = int(process.log_text().split()[1])
        with pytest.raises(ProcessFailed, match="killed after"):
            process.wait(0.05)
        assert not process.running
    wait_until_gone(child)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        # An orphan whose new parent does not reap it stays as a zombie: dead as well.
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there")


def test_waiting_for_a_process_that_ends_early_tells_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such port'); raise SystemExit(3)"]
    with GroupProcess(command, log=tmp_path / "log") as process:
        with pytest.raises(ProcessFailed, match=r"(?s)ended before readiness, code 3.*no such port"):
            process.wait_until(lambda: False, "readiness", 30)


LEAVES_ON_SIGTERM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
signal.pause()
"""


def test_terminate_gives_the_exit_code(tmp_path: Path) -> None:
    with GroupProcess([sys.executable, "-c", LEAVES_ON_SIGTERM], log=tmp_path / "log") as process:
        process.wait_until(lambda: "up" in process.log_text(), "start", 30)
        assert process.terminate(30) == 7


def test_killed_process_has_its_signal_as_code(tmp_path: Path) -> None:
    with GroupProcess([sys.executable, "-c", "import time; time.sleep(60)"], log=tmp_path / "log") as process:
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


INTERRUPTED_WHILE_STARTING = """
import os, signal, subprocess, sys
from skylark import processes

started = []

class Slow(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        started.append(self)
        os.kill(os.getpid(), signal.SIGINT)  # the moment at which nobody else knows of the process

processes.subprocess.Popen = Slow
try:
    processes.spawn([sys.executable, "-c", "import time; time.sleep(600)"])
except KeyboardInterrupt:
    assert started[0].returncode == -signal.SIGKILL, started[0].returncode
    print("interrupted")
"""


def test_a_process_is_not_lost_when_its_start_is_interrupted(tmp_path: Path) -> None:
    with GroupProcess([sys.executable, "-c", INTERRUPTED_WHILE_STARTING], log=tmp_path / "log") as process:
        assert process.wait(60) == 0, process.log_tail()
        assert process.log_text() == "interrupted\n"


STARTS_AND_WAITS = """
import sys, time
from pathlib import Path
from skylark.processes import GroupProcess

process = GroupProcess([sys.executable, "-c", sys.argv[1]], log=Path(sys.argv[2]))
process.wait_until(lambda: "child" in process.log_text(), "a child", 60)
print(process.pid, *process.log_text().split()[1:], flush=True)
time.sleep(600)
"""


def test_a_killed_parent_leaves_no_processes_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_AND_WAITS, SPAWNS_A_CHILD, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        started = [int(pid) for pid in starter.stdout.readline().split()]
        starter.kill()
    assert len(started) == 2
    for pid in started:
        wait_until_gone(pid)


def test_a_process_that_has_ended_leaves_no_guard_behind(tmp_path: Path) -> None:
    before = children()
    with GroupProcess([sys.executable, "-c", "pass"], log=tmp_path / "log") as process:
        assert len(children() - before) == 2
        assert process.wait(60) == 0
        assert children() == before


def children() -> set[int]:
    """Processes that this one has started and not buried."""
    return {
        int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()
    }


# --- Ports ---


def test_reserved_ports_are_held_together_until_released() -> None:
    ports = PortReservation(-2, 0, 1)
    assert ports.base in PORTS
    for distance in (-2, 0, 1):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports.base + distance))
    ports.release()
    for distance in (-2, 0, 1):
        with socket.socket() as other:
            other.bind(("127.0.0.1", ports.base + distance))


def test_reservations_do_not_overlap() -> None:
    reservations = [PortReservation(-2, 0, 1) for _ in range(20)]
    taken = [reservation.base + distance for reservation in reservations for distance in (-2, 0, 1)]
    for reservation in reservations:
        reservation.release()
    assert len(set(taken)) == len(taken)


def test_ports_and_their_neighbours_are_given_out_once() -> None:
    ports = [free_ports(-2, 1) for _ in range(50)]
    together = {port + distance for port in ports for distance in (-2, 0, 1)}
    assert len(together) == 150


def test_a_port_that_is_taken_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", [port + 2])
        monkeypatch.setattr(processes, "PORT_TRIES", 1)
        with pytest.raises(OSError, match="no free ports at"):
            free_ports(-2, 1)


def test_a_module_is_run_by_this_python() -> None:
    assert python_command("skylark.x", "a") == [sys.executable, "-m", "skylark.x", "a"]
