"""Spark's JVM: how it is started so that it says what matters and nothing else."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkConf

log = logging.getLogger(__name__)

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
LOGGING = Path(__file__).with_name("log4j2.properties")
NO_BOUNDS_CHECKS = "-Darrow.enable_unsafe_memory_access=true"
"""Arrow looks at every single read whether it is inside its buffer: a tenth of the time in which Spark reads
rows from Python. Those were written by Arrow, too, which keeps to its buffers.
"""
EVERYTHING = ("-Dskylark.spark.level=info", "-Dskylark.spark.traces=full")
HOME = "SPARK_HOME"
ARCHIVED = "python"
WARNING = b"WARNING: "
CHUNK_BYTES = 64 * 1024
STANDARD_ERROR = 2


def java_options(conf: Mapping[str, str]) -> dict[str, str]:
    """Settings that make Spark log errors only, or everything where we log everything; and read Arrow faster.

    What the given settings tell Java comes last, and wins.
    """
    words = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}", NO_BOUNDS_CHECKS]
    if log.isEnabledFor(logging.DEBUG):
        words += EVERYTHING
    return {
        JAVA_OPTIONS: " ".join([*words, conf.get(JAVA_OPTIONS, "")]).strip(),
        EXECUTOR_OPTIONS: f"{NO_BOUNDS_CHECKS} {conf.get(EXECUTOR_OPTIONS, '')}".strip(),
    }


def launch(conf: SparkConf) -> Any:
    """Start a JVM, as a gateway. Its standard error is ours, without the warnings with which Java begins."""
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    with _standard_error() as stream, quick_home(conf) as home:
        gateway: Any = launch_gateway(conf, popen_kwargs={"stderr": stream})  # type: ignore[no-untyped-call]
    if home is not None:  # the JVM takes from it as long as it runs, and outlives us by a little
        java = gateway.jvm
        java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(str(home)))
    return gateway


@contextmanager
def quick_home(conf: SparkConf) -> Iterator[Path | None]:
    """Let a JVM that is started meanwhile have a home of Spark without the archive of its Python files.

    Workers look there first, and nothing in an archive is kept compiled: every process of a query would
    compile all of it, for two thirds of a second. The same files lie compiled where this process has them.
    The home is links only, and may be removed with the JVM.
    """
    if not _is_ours(conf):
        yield None
        return
    import pyspark  # noqa: PLC0415

    home = Path(tempfile.mkdtemp(prefix="skylark-spark-"))
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != ARCHIVED:
            (home / each.name).symlink_to(each)
    os.environ[HOME] = str(home)
    try:
        yield home
    except BaseException:
        shutil.rmtree(home)
        raise
    finally:
        del os.environ[HOME]


def _is_ours(conf: SparkConf) -> bool:
    """Whether driver and workers are here, with the interpreter and the Spark that this process has."""
    interpreters = {
        os.environ.get("PYSPARK_PYTHON"),
        os.environ.get("PYSPARK_DRIVER_PYTHON"),
        conf.get("spark.pyspark.python"),
        conf.get("spark.pyspark.driver.python"),
    }
    is_here = (conf.get("spark.master") or "").startswith("local")
    return is_here and HOME not in os.environ and interpreters <= {None, sys.executable}


@contextmanager
def _standard_error() -> Iterator[int | None]:
    if log.isEnabledFor(logging.DEBUG):
        yield None  # as it is
        return
    reading, writing = os.pipe()
    threading.Thread(target=_relay, args=(reading,), name="skylark-spark-stderr", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)  # the JVM has its own by now, and the pipe ends with it


def _relay(reading: int) -> None:
    with open(reading, "rb", buffering=0) as pipe:
        for chunk in after_warnings(iter(lambda: pipe.read(CHUNK_BYTES), b"")):
            os.write(STANDARD_ERROR, chunk)


def after_warnings(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What follows the lines in which Java warns of modules that Spark always asks it for.

    Not by lines from then on: a bar that moves has none.
    """
    waiting, rest = b"", iter(chunks)
    for chunk in rest:
        waiting += chunk
        while waiting.startswith(WARNING) and b"\n" in waiting:
            waiting = waiting.partition(b"\n")[2]
        if not waiting.startswith(WARNING) and not WARNING.startswith(waiting):
            break
    if waiting:
        yield waiting
    yield from rest
