"""Java programs: find the toolchain, fetch jars with Maven, compile sources, run JVMs and load drivers.

Jars lie in the cache under the hash of the pom that names them, classes beside them under that of their
sources.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from skylark.bench.build_cache import BUILD_TIMEOUT_S, build_once, cache_dir, digest
from skylark.errors import RocketMQError
from skylark.processes import KILL_TIMEOUT_S, ProcessFailed, run, spawn

JAVA_VERSION_MIN = 17
VERSION_TIMEOUT_S = 30
COMPILE_TIMEOUT_S = 120
FIRST_HEAP_MB_MAX = 128
# C1 alone: these JVMs live for seconds, and the second compiler would take a core from what is tested.
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")


class MissingToolchain(RocketMQError):
    """A required program is missing or too old, or a download failed."""


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


def fetch_jars(pom: Path) -> Classpath:
    """The runtime jars that `pom` names, fetched on first use. Raises MissingToolchain."""
    toolchain = find_toolchain()
    directory = cache_dir("interop") / digest(pom) / "lib"
    build_once(directory, lambda target: _fetch(toolchain, pom, target))
    return Classpath(jars=directory)


def _fetch(toolchain: Toolchain, pom: Path, target: Path) -> None:
    command = [str(toolchain.maven), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    try:
        run_tool(command, BUILD_TIMEOUT_S)
    except ProcessFailed as error:
        raise MissingToolchain(f"the jars of {pom.name} cannot be fetched: {error}") from error


def compile_sources(pom: Path, sources: Sequence[Path], *, libraries: Path | None = None) -> Classpath:
    """The jars of `pom` with `sources` compiled against them, and against those of a folder.

    Raises MissingToolchain, and ProcessFailed if they do not compile.
    """
    jars = fetch_jars(pom).jars
    javac = find_toolchain().javac
    directory = jars.parent / f"classes-{digest(*sources)}"
    places = [str(folder / "*") for folder in (jars, libraries) if folder is not None]
    options = ["-encoding", "UTF-8", "-nowarn", "-cp", os.pathsep.join(places)]

    def build(target: Path) -> None:
        run_tool([str(javac), *options, "-d", str(target), *map(str, sources)], COMPILE_TIMEOUT_S)

    build_once(directory, build)
    return Classpath(jars=jars, classes=directory)


def run_tool(command: Sequence[str], timeout_s: float) -> None:
    """Run a program whose output matters only if it fails. Raises ProcessFailed with its end."""
    with tempfile.TemporaryDirectory(prefix="skylark-tool-") as scratch:
        run(command, log=Path(scratch) / "output.log", timeout_s=timeout_s)


def jvm_command(
    classpath: Classpath,
    main_class: str,
    *arguments: str,
    home: Path,
    heap_mb: int,
    options: Sequence[str] = (),
) -> list[str]:
    """The command line of a short-lived JVM.

    `home` takes the files meant for the user's home, and temporary ones: Apache's servers leave keys behind.
    """
    heap = [f"-Xms{min(heap_mb, FIRST_HEAP_MB_MAX)}m", f"-Xmx{heap_mb}m"]
    places = [f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"]
    java = str(find_toolchain().java)
    return [java, *heap, *places, *JVM_OPTIONS, *options, "-cp", str(classpath), main_class, *arguments]


DRIVERS = Path(__file__).parent / "drivers"
HEAP_MB = 768
START_TIMEOUT_S = 60
# Both compilers: the client is to show what it can.
OPTIONS = ("-XX:TieredStopAtLevel=4", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


class Refused(ProcessFailed):
    """The driver could not do what it was asked for; the text is its sentence."""


def driver_classpath(pom: Path, main_class: str) -> Classpath:
    """The driver compiled against the jars of a pom. Raises MissingToolchain and ProcessFailed."""
    return compile_sources(pom, [DRIVERS / "LoadDriver.java", DRIVERS / f"{main_class}.java"])


class JavaLoadDriver:
    """One JVM with one client. Leaving the context kills it."""

    def __init__(self, classpath: Classpath, main_class: str, address: str, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._name = main_class
        self._log = home / f"{main_class}.log"
        command = jvm_command(classpath, main_class, address, home=home, heap_mb=HEAP_MB, options=OPTIONS)
        with self._log.open("ab") as log:
            self._process = spawn(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            self._answer(START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Give its group a signal; nothing if it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.communicate(timeout=KILL_TIMEOUT_S)

    def call(self, *words: str | float, timeout_s: float) -> dict[str, float]:
        """The figures that answer a command. Raises Refused, and ProcessFailed when there is no answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says how it ended
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, float]:
        assert self._process.stdout is not None
        limit = threading.Timer(timeout_s, self._process.kill)
        limit.start()
        try:
            for line in self._process.stdout:  # a client may write words of its own
                verdict, _, rest = line.strip().partition(" ")
                if verdict == "failed":
                    raise Refused(rest)
                if verdict == "ok":
                    return {name: float(value) for name, _, value in (p.partition("=") for p in rest.split())}
        finally:
            limit.cancel()
        tail = self._log.read_text(errors="replace")[-2000:]
        raise ProcessFailed(f"{self._name} ended or did not answer within {timeout_s} s\n{tail}")
