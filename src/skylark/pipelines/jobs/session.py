"""A Spark session for a job, here, on a cluster or over Connect, with our package on its workers."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies

from skylark import __version__
from skylark.errors import SettingsError
from skylark.pipelines.jobs import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LOCAL_MASTER = "local[*,4]"
"""All cores, and tasks are tried four times, as on a cluster; plain `local[*]` gives up at once."""
MASTER = re.compile(r"local(-cluster)?(\[.*\])?|yarn|(spark|k8s)://.+")
PORTS = {"sc": 15002, "spark": 7077}
ANSWER_TIMEOUT_S = 10.0
JAVA_MAJOR_MIN = 17
PACKED = "environment"
PROBE_TASKS = 2
STATIC = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Spark's choice for local directories starts ten processes for every file it writes: 70 ms of a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of a JVM that we start: a Connect server has its own."""
DYNAMIC = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Where a job runs."""

    master: str | None = None
    remote: str | None = None
    pack: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    name: str = "skylark"

    def __post_init__(self) -> None:
        if self.remote and (self.master or self.pack):
            raise SettingsError("remote", "a Connect server has its own master and environment")
        if not MASTER.fullmatch(self.master or LOCAL_MASTER):
            raise SettingsError(
                "master", f"{self.master!r} is none of local[N], spark://HOST:7077, yarn, k8s://HOST:PORT"
            )
        if self.pack and (self.master or "local").startswith("local"):
            raise SettingsError("pack", "only workers of a cluster need a packed environment: give --master")


def check_java() -> None:
    """Raises SettingsError that says what to install."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, where there is no bin/java" if home else "there is no java on the PATH"
        raise SettingsError(
            "java", f"Spark needs Java {JAVA_MAJOR_MIN} or newer, and {where}: install a JRE, or use --remote"
        )
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    words = (done.stderr or done.stdout).split('"')
    major = words[1].split(".")[0] if len(words) > 1 else ""
    if major.isdecimal() and int(major) < JAVA_MAJOR_MIN:
        raise SettingsError("java", f"Spark needs Java {JAVA_MAJOR_MIN} or newer; {java} is {words[1]}")


def check_server(settings: SessionSettings) -> None:
    """Raise SettingsError if no cluster or Connect server is there: Spark would try for minutes, silently."""
    kind, _, places = (settings.remote or settings.master or "").partition("://")
    if kind not in PORTS or (kind == "sc" and getproxies()):  # gRPC would go through the proxy
        return
    reason = ""
    for place in places.partition("/")[0].split(","):
        try:
            where = urlsplit(f"//{place}")
            port = where.port or PORTS[kind]
            with closing(HTTPConnection(where.hostname or "", port, timeout=ANSWER_TIMEOUT_S)) as probe:
                probe.connect()
                return
        except (OSError, ValueError) as error:
            reason = str(error)
    raise SettingsError("remote" if settings.remote else "master", f"nobody answers at {places}: {reason}")


@contextmanager
def session(settings: SessionSettings) -> Iterator[SparkSession]:
    """A session with our formats registered; stopped at the end. Raises SettingsError."""
    if settings.remote is None:
        check_java()
    check_server(settings)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers would start whatever the PATH has
    with _packed_environment(settings) as packed:
        spark = _build(settings, packed)
        try:
            register(spark)
            is_here = settings.remote is None and (settings.master or "local").startswith("local")
            if not is_here or os.environ["PYSPARK_PYTHON"] != sys.executable:
                probe(spark)
            yield spark
        finally:
            spark.stop()


def _build(settings: SessionSettings, packed: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if settings.remote is not None:
        builder = SparkSession.builder.appName(settings.name).remote(settings.remote)
        return builder.config(map={**DYNAMIC, **settings.conf}).getOrCreate()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    values = {**STATIC, **DYNAMIC, **packed, **settings.conf, **jvm.java_options(settings.conf)}
    conf = SparkConf().setAppName(settings.name).setMaster(settings.master or LOCAL_MASTER)
    conf.setAll(list(values.items()))
    if SparkContext._gateway is None:  # a JVM outlives the sessions in it
        SparkContext(conf=conf, gateway=jvm.launch(conf))
    return SparkSession.builder.config(conf=conf).getOrCreate()


def register(spark: SparkSession) -> None:
    """Make our formats known. What is registered travels to workers; what Spark finds by itself does not."""
    from skylark.pipelines.source import RocketMQSource  # noqa: PLC0415
    from skylark.pipelines.table import TableSource  # noqa: PLC0415

    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(TableSource)


def probe(spark: SparkSession) -> None:
    """Run a task that imports what ours will import. Raises SettingsError that names host and interpreter."""
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.functions import col, udf  # noqa: PLC0415

    def look(_: int) -> str:  # nested, so that it travels by value: the package may not be there
        import platform  # noqa: PLC0415
        import sys as its  # noqa: PLC0415

        where = f"{platform.node()}: {its.executable}, Python {platform.python_version()}"
        try:
            import deltalake  # noqa: F401, PLC0415
            import pyarrow as pa  # noqa: F401, PLC0415

            import skylark  # noqa: PLC0415
        except ImportError as error:
            return f"{where}: {error}"
        return f"ok {skylark.__version__} {where}"

    look_there = udf(look, "string", useArrow=False)
    try:
        found = [
            row[0]
            for row in spark.range(0, PROBE_TASKS, 1, PROBE_TASKS).select(look_there(col("id"))).collect()
        ]
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise SettingsError(
            "workers",
            f"a first task failed: {first}. The driver is {sys.executable}, Python {sys.version.split()[0]}; "
            "workers need the same minor version: set PYSPARK_PYTHON, or use --pack",
        ) from error
    for sentence in found:
        if not sentence.startswith("ok "):
            raise SettingsError(
                "workers",
                f"{sentence}. Install skylarkmq[spark] {__version__} there at the same path, or use --pack",
            )
        if sentence.split()[1] != __version__:
            log.warning("workers have skylark %s, the driver %s", sentence.split()[1], __version__)


@contextmanager
def _packed_environment(settings: SessionSettings) -> Iterator[Mapping[str, str]]:
    """Pack this environment for workers that have none; stand where the driver finds it by the same name."""
    if not settings.pack:
        yield {}
        return
    try:
        import venv_pack  # noqa: PLC0415
    except ImportError:
        raise SettingsError("pack", "it needs the package venv-pack: pip install venv-pack") from None
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="skylark-pack-") as folder:
        archive = Path(folder) / f"{PACKED}.tar.gz"
        try:
            venv_pack.pack(prefix=sys.prefix, output=str(archive))
        except venv_pack.VenvPackException as error:
            raise SettingsError("pack", f"{sys.prefix} cannot be packed: {error}") from error
        (Path(folder) / PACKED).symlink_to(sys.prefix)
        os.environ["PYSPARK_PYTHON"] = f"./{PACKED}/bin/python"
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.chdir(folder)
        try:
            yield {"spark.archives": f"{archive}#{PACKED}"}
        finally:
            os.chdir(before)
