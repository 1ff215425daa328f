"""Java for the interop tests: find the toolchain, fetch jars, compile drivers, run JVMs.

Nothing is fetched or built inside the clone: jars and classes lie in `$SKYLARK_CACHE/interop` (default
`~/.cache/skylark/interop`), under the hash of the pom they came from, and appear there by one rename, so
that concurrent test processes share them. Every process has a hard time limit and a process group of its
own. A missing toolchain (or a registry out of reach) skips the test; where `CI` is set it fails it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import pytest

JAVA_VERSION_MIN = 17
VERSION_TIMEOUT_S = 30
FETCH_TIMEOUT_S = 480
COMPILE_TIMEOUT_S = 120
KILL_TIMEOUT_S = 30
LOG_TAIL_LINES = 40
# C1 alone: these JVMs live for seconds, and the second compiler would take a core from what is tested.
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")


class MissingToolchain(Exception):
    """Java, javac or Maven is absent or too old, or the jars cannot be had; the text says which."""


class JavaFailed(Exception):
    """A Java process ended badly or not in time; carries the end of its output."""


@dataclass(frozen=True)
class Toolchain:
    """The programs found on this machine."""

    java: Path
    javac: Path
    maven: Path


@dataclass(frozen=True)
class Classpath:
    """The jars of one pom, and the classes compiled against them (none for a server)."""

    jars: Path
    classes: Path | None = None

    def __str__(self) -> str:
        parts = [str(self.jars / "*")]
        return os.pathsep.join([str(self.classes), *parts] if self.classes else parts)


def missing(reason: str) -> NoReturn:
    """Skip the running test for `reason`, or fail it in CI, where these tests must run."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def find_toolchain() -> Toolchain:
    """The toolchain of this machine, `JAVA_HOME` before `PATH`. Raises MissingToolchain."""
    java, javac = (_find_java_program(name) for name in ("java", "javac"))
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolchain("Maven (mvn) is not installed")
    return Toolchain(java=java, javac=javac, maven=Path(maven))


def _find_java_program(name: str) -> Path:
    home = os.environ.get("JAVA_HOME")
    found = (shutil.which(name, path=str(Path(home) / "bin")) if home else None) or shutil.which(name)
    if found is None:
        raise MissingToolchain(f"{name} is not installed (Java {JAVA_VERSION_MIN} or newer is needed)")
    try:
        answer = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingToolchain(f"{found} -version failed: {error}") from error
    version = parse_java_version(answer.stderr + answer.stdout)
    if version < JAVA_VERSION_MIN:
        raise MissingToolchain(f"{found} is Java {version}, {JAVA_VERSION_MIN} or newer is needed")
    return Path(found)


def parse_java_version(text: str) -> int:
    """The feature release out of `java -version` or `javac -version` (8 for "1.8.0"); 0 if there is none."""
    match = re.search(r'(?:version "|javac )(\d+)(?:\.(\d+))?', text)
    if match is None:
        return 0
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first


def cache_dir() -> Path:
    """Where fetched and compiled files lie; outside the clone."""
    root = os.environ.get("SKYLARK_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "skylark") / "interop"


def digest(*files: Path) -> str:
    """A short hash over the names and contents of files, in the order of their names."""
    state = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        state.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return state.hexdigest()[:16]


def jars_of(pom: Path) -> Classpath:
    """The runtime jars that `pom` names, fetched on first use. Skips (or fails) the test if it cannot."""
    try:
        toolchain = find_toolchain()
        directory = cache_dir() / digest(pom) / "lib"
        build_once(directory, lambda target: _fetch(toolchain, pom, target))
    except MissingToolchain as error:
        missing(str(error))
    return Classpath(jars=directory)


def _fetch(toolchain: Toolchain, pom: Path, target: Path) -> None:
    command = [str(toolchain.maven), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    try:
        _run_tool(command, FETCH_TIMEOUT_S)
    except JavaFailed as error:
        raise MissingToolchain(f"the jars of {pom.name} cannot be fetched: {error}") from error


def compiled(pom: Path, sources: Sequence[Path]) -> Classpath:
    """The jars of `pom` with `sources` compiled against them. Raises JavaFailed if they do not compile."""
    jars = jars_of(pom).jars
    javac = find_toolchain().javac
    directory = jars.parent / f"classes-{digest(*sources)}"
    options = ["-encoding", "UTF-8", "-nowarn", "-cp", str(jars / "*")]

    def build(target: Path) -> None:
        _run_tool([str(javac), *options, "-d", str(target), *map(str, sources)], COMPILE_TIMEOUT_S)

    build_once(directory, build)
    return Classpath(jars=jars, classes=directory)


def _run_tool(command: list[str], timeout_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="skylark-java-") as scratch:
        run(command, log=Path(scratch) / "output.log", timeout_s=timeout_s)


def build_once(directory: Path, build: Callable[[Path], None]) -> None:
    """Make `directory` exist with what `build` writes into it; one process builds, the others wait for it.

    `build` gets an empty directory beside the final one, renamed when it returns: what exists is complete.
    Raises what `build` raises, and TimeoutError if another builder holds on for too long.
    """
    if directory.is_dir():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(f"{directory.name}.lock")):
        if directory.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{directory.name}.tmp-") as scratch:
            target = Path(scratch) / "built"
            target.mkdir()
            build(target)
            target.rename(directory)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} is still locked by another process") from None
                time.sleep(0.1)
        yield


def jvm_command(
    classpath: Classpath,
    main_class: str,
    *arguments: str,
    home: Path,
    heap_mb: int,
    options: Sequence[str] = (),
) -> list[str]:
    """The command line of a short-lived JVM; `home` takes the files meant for the user's home."""
    heap = [f"-Xms{min(heap_mb, 128)}m", f"-Xmx{heap_mb}m", f"-Duser.home={home}"]
    java = str(find_toolchain().java)
    return [java, *heap, *JVM_OPTIONS, *options, "-cp", str(classpath), main_class, *arguments]


def run(command: Sequence[str], *, log: Path, timeout_s: float, directory: Path | None = None) -> None:
    """Run a command to its end, output in `log`. Raises JavaFailed on a bad code or after `timeout_s`."""
    with GroupProcess(command, log=log, directory=directory) as process:
        code = process.wait(timeout_s)
        if code != 0:
            raise JavaFailed(f"{_name(command)} ended with code {code}\n{process.log_tail()}")


def _name(command: Sequence[str]) -> str:
    return Path(command[0]).name


class GroupProcess:
    """A process in a group of its own, its output in a log file. Leaving the context kills the group."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.log = log
        self._command = command
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=directory,
                start_new_session=True,
            )

    def __enter__(self) -> GroupProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """The exit code. Raises JavaFailed, and kills the group, when the process outlives `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise JavaFailed(
                f"{_name(self._command)} killed after {timeout_s} s\n{self.log_tail()}"
            ) from None

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll until `condition` holds. Raises JavaFailed if the process ends or `timeout_s` passes first."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.running:
                raise JavaFailed(
                    f"{_name(self._command)} ended before {what}, code {self._process.returncode}\n"
                    f"{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise JavaFailed(f"{_name(self._command)}: no {what} within {timeout_s} s\n{self.log_tail()}")
            time.sleep(0.05)

    def terminate(self, timeout_s: float) -> int:
        """SIGTERM, then the exit code; SIGKILL and JavaFailed when the process does not follow."""
        self._signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL for the whole group, and wait until the process is gone. Harmless on one that has ended."""
        self._signal(signal.SIGKILL)
        self._process.wait(KILL_TIMEOUT_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            os.killpg(self._process.pid, number)

    def log_text(self) -> str:
        """What the process has written so far."""
        return self.log.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last lines of the log, for error messages."""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])
