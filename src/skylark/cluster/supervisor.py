"""Supervisor: runs the processes of a local cluster and restarts those that end; a file tells how they are.

Other processes read `cluster.json` in its directory; while the supervisor runs it holds the lock beside it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import msgspec
from msgspec import Struct

from skylark.atomic_file import load_file, write_file
from skylark.cluster.layout import ClusterNode, NodeKind
from skylark.controller.etcd_member import PROGRAM, EtcdMember
from skylark.errors import SettingsError
from skylark.processes import GroupProcess, ProcessFailed, listens, python_command

STATE_FILE = "cluster.json"
LOCK_FILE = "cluster.lock"
SETTINGS_FILE = "node.conf"
READY_MARK = "ready after"
CHECK_S = 0.2
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
RESTART_FIRST_S = 1.0
RESTART_MAX_S = 30.0
STEADY_S = 30.0
"""A process that ran this long is restarted after RESTART_FIRST_S, whatever happened before."""
LISTEN_TIMEOUT_S = 0.5


class NodeState(Struct, frozen=True, rename="camel"):
    """One process as `cluster.json` tells it. `pid` is 0 while it does not run."""

    name: str
    kind: str
    address: str
    pid: int
    restarts: int
    log: str


class ClusterState(Struct, frozen=True, rename="camel"):
    """A running cluster."""

    supervisor: int
    namesrv: str
    controllers: str
    nodes: list[NodeState]

    def node(self, name: str) -> NodeState:
        """Raises SettingsError."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise SettingsError("NODE", f"there is no {name}; nodes: {known}")


def read_state(directory: Path) -> ClusterState:
    """Return the state of a cluster that runs in this directory. Raises SettingsError if none does."""
    state = load_file(directory / STATE_FILE, _decode) if _is_locked(directory) else None
    if state is None:
        raise SettingsError("--dir", f"no cluster runs in {directory}; `skylark cluster start` starts one")
    return state


def _decode(data: bytes) -> ClusterState:
    return msgspec.json.decode(data, type=ClusterState)


def _is_locked(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def stop_cluster(directory: Path, timeout_s: float) -> None:
    """Stop a running cluster and wait for its end. Raises SettingsError, ProcessFailed."""
    state = read_state(directory)
    os.kill(state.supervisor, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while _is_locked(directory):
        if time.monotonic() > deadline:
            raise ProcessFailed(f"the cluster in {directory} did not stop within {timeout_s:g} s")
        time.sleep(CHECK_S)


@dataclass
class _Run:
    """A node, its process, and when to start it again."""

    node: ClusterNode
    log: Path
    process: GroupProcess | None = None
    started_at: float = 0.0
    log_start: int = 0
    restarts: int = 0
    pause_s: float = RESTART_FIRST_S
    due_at: float = 0.0


class Supervisor:
    """Runs a cluster until SIGTERM or SIGINT. Main thread only."""

    def __init__(self, directory: Path, nodes: Sequence[ClusterNode], say: Callable[[str], None]) -> None:
        """Raises SettingsError if etcd is wanted and not installed."""
        self._directory = directory.absolute()
        self._runs = [_Run(node, self._directory / node.name / "output.log") for node in nodes]
        self._say = say
        self._stop = threading.Event()
        self._etcd = shutil.which(PROGRAM)
        if self._etcd is None and any(node.kind is NodeKind.ETCD for node in nodes):
            raise SettingsError("--etcd", "etcd is not installed; apt-get install etcd-server")

    def run(self, on_ready: Callable[[ClusterState], None]) -> None:
        """Start everything, call `on_ready`, and supervise. Raises SettingsError, ProcessFailed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            lock = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SettingsError("--dir", f"a cluster runs in {self._directory} already") from None
            for number in (signal.SIGTERM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, self._interrupted))
            stack.callback(self._end)
            self._start_all()
            on_ready(self._state())
            while not self._stop.wait(CHECK_S):
                self._supervise()

    def _interrupted(self, number: int, _: object) -> None:
        self._stop.set()

    def _start_all(self) -> None:
        for kind in NodeKind:
            runs = [run for run in self._runs if run.node.kind is kind]
            for run in runs:
                self._launch(run)
            for run in runs:
                process = run.process
                assert process is not None
                process.wait_until(
                    lambda run=run: self._stop.is_set() or self._is_ready(run),  # type: ignore[misc]
                    f"{run.node.name} to be ready",
                    START_TIMEOUT_S,
                )
            if self._stop.is_set():
                return
        self._write_state()

    def _launch(self, run: _Run) -> None:
        home = run.log.parent
        home.mkdir(parents=True, exist_ok=True)
        (home / SETTINGS_FILE).write_text(run.node.properties())
        run.log_start = run.log.stat().st_size if run.log.exists() else 0
        run.started_at = time.monotonic()
        run.process = GroupProcess(self._command(run.node, home), log=run.log)

    def _command(self, node: ClusterNode, home: Path) -> list[str]:
        if node.kind is not NodeKind.ETCD:
            return python_command("skylark", node.kind.value, "-c", str(home / SETTINGS_FILE))
        assert self._etcd is not None
        nodes = [run.node for run in self._runs if run.node.kind is NodeKind.ETCD]
        members = [EtcdMember(each.name, each.port) for each in nodes]
        return EtcdMember(node.name, node.port).command(self._etcd, home, members)

    def _is_ready(self, run: _Run) -> bool:
        if run.node.kind is NodeKind.ETCD:
            return listens(run.node.address, LISTEN_TIMEOUT_S)
        with run.log.open("rb") as log:
            log.seek(run.log_start)
            return READY_MARK.encode() in log.read()

    def _supervise(self) -> None:
        now = time.monotonic()
        changed = False
        for run in self._runs:
            if run.process is not None and not run.process.running:
                run.process.kill()  # what is left of its group
                run.process = None
                run.pause_s = RESTART_FIRST_S if now - run.started_at > STEADY_S else run.pause_s
                run.due_at = now + run.pause_s
                run.pause_s = min(2 * run.pause_s, RESTART_MAX_S)
                self._say(f"{run.node.name} ended; starts again in {run.due_at - now:g} s (log {run.log})")
                changed = True
            elif run.process is None and now >= run.due_at:
                run.restarts += 1
                self._launch(run)
                changed = True
        if changed:
            self._write_state()

    def _state(self) -> ClusterState:
        def addresses(kind: NodeKind) -> str:
            return ";".join(run.node.address for run in self._runs if run.node.kind is kind)

        nodes = [
            NodeState(
                run.node.name,
                run.node.kind.value,
                run.node.address,
                run.process.pid if run.process is not None else 0,
                run.restarts,
                str(run.log),
            )
            for run in self._runs
        ]
        return ClusterState(
            os.getpid(), addresses(NodeKind.NAME_SERVER), addresses(NodeKind.CONTROLLER), nodes
        )

    def _write_state(self) -> None:
        write_file(self._directory / STATE_FILE, msgspec.json.encode(self._state()))

    def _end(self) -> None:
        """Stop everything in order; what does not stop in time is killed."""
        for kind in reversed(NodeKind):
            processes = [
                run.process for run in self._runs if run.node.kind is kind and run.process is not None
            ]
            for process in processes:
                process.signal(Signals.SIGTERM)
            for process in processes:
                try:
                    process.wait(STOP_TIMEOUT_S)
                except ProcessFailed as error:
                    self._say(str(error))
                process.kill()
