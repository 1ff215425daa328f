"""A Spark session for a job: local, on a cluster, over Connect; starts the JVM and registers our formats."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from skylark import __version__
from skylark.errors import SettingsError
from skylark.pipelines.jobs.worker_python import needs, pack, server_needs

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
LOG4J_FILE = Path(__file__).with_name("log4j2.properties")
NO_BOUNDS_CHECKS = "-Darrow.enable_unsafe_memory_access=true"
"""Disables Arrow's bounds checks, which take a tenth of the time in which Spark reads rows from Python."""
VERBOSE_OPTIONS = ("-Dskylark.spark.level=info", "-Dskylark.spark.traces=full")
HOME = "SPARK_HOME"
ARCHIVED = "python"
JAVA_WARNING = b"WARNING: "
CHUNK_BYTES = 64 * 1024
STANDARD_ERROR = 2


def java_options(conf: Mapping[str, str]) -> dict[str, str]:
    """JVM options: log errors only, or everything at debug level, and no Arrow bounds checks.

    Options in `conf` come last and take precedence.
    """
    words = [f"-Dlog4j2.configurationFile={LOG4J_FILE.as_uri()}", NO_BOUNDS_CHECKS]
    if log.isEnabledFor(logging.DEBUG):
        words += VERBOSE_OPTIONS
    return {
        JAVA_OPTIONS: " ".join([*words, conf.get(JAVA_OPTIONS, "")]).strip(),
        EXECUTOR_OPTIONS: f"{NO_BOUNDS_CHECKS} {conf.get(EXECUTOR_OPTIONS, '')}".strip(),
    }


def launch_jvm(conf: SparkConf) -> Any:
    """Start a JVM. Its standard error is passed on without Java's startup warnings."""
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    with _standard_error() as stream, quick_home(conf) as home:
        gateway: Any = launch_gateway(conf, popen_kwargs={"stderr": stream})  # type: ignore[no-untyped-call]
    if home is not None:  # the JVM uses it until it exits, after this process
        java = gateway.jvm
        java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(java.java.io.File(str(home)))
    return gateway


@contextmanager
def quick_home(conf: SparkConf) -> Iterator[Path | None]:
    """Set SPARK_HOME to a directory without Spark's zipped Python files, for a JVM started meanwhile.

    Workers import from the zip first, and zipped modules are compiled anew in every process, which takes two
    thirds of a second. The installed package has the same files compiled. The directory holds only links and
    may be deleted with the JVM.
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
    """Return whether driver and workers run on this host with this interpreter and this Spark."""
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
        yield None  # inherited
        return
    reading, writing = os.pipe()
    threading.Thread(target=_relay, args=(reading,), name="skylark-spark-stderr", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)  # the JVM has its own copy


def _relay(reading: int) -> None:
    with open(reading, "rb", buffering=0) as pipe:
        for chunk in after_warnings(iter(lambda: pipe.read(CHUNK_BYTES), b"")):
            os.write(STANDARD_ERROR, chunk)


def after_warnings(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Drop Java's leading warning lines about modules.

    What follows is not split into lines: a progress bar has none.
    """
    waiting, rest = b"", iter(chunks)
    for chunk in rest:
        waiting += chunk
        while waiting.startswith(JAVA_WARNING) and b"\n" in waiting:
            waiting = waiting.partition(b"\n")[2]
        if not waiting.startswith(JAVA_WARNING) and not JAVA_WARNING.startswith(waiting):
            break
    if waiting:
        yield waiting
    yield from rest


LOCAL_MASTER = "local[*,4]"
"""All cores, with four attempts per task, as on a cluster; `local[*]` has one."""
MASTER = re.compile(r"local(-cluster)?(\[.*\])?|yarn|(spark|k8s)://.+")
PORTS = {"sc": 15002, "spark": 7077}
ANSWER_TIMEOUT_S = 10.0
JAVA_MAJOR_MIN = 17
PACKED = "environment"
IMAGE = "spark.kubernetes.container.image"
HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
PROBE_TASKS = 2
STATIC = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Spark's default for local directories starts ten processes per file: 70 ms per batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of a JVM that we start; a Connect server has its own."""
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
            raise SettingsError(
                "remote", "cannot be combined with --master or --pack: a Connect server has its own"
            )
        if not MASTER.fullmatch(self.master or LOCAL_MASTER):
            raise SettingsError(
                "master",
                f"invalid master {self.master!r}; use local[N], spark://HOST:7077, yarn or k8s://HOST:PORT",
            )
        if self.pack and (self.master or "local").startswith("local"):
            raise SettingsError(
                "pack", "needs a cluster; use --master spark://HOST:7077, yarn or k8s://HOST:PORT"
            )

    @property
    def place(self) -> str:
        return self.remote or self.master or LOCAL_MASTER

    def needs(self) -> list[str]:
        """What must be there, as sentences. Raises SettingsError for what is missing here already."""
        if self.remote is not None:
            return [f"on the server and its workers, {each}" for each in server_needs()]
        master = self.master or LOCAL_MASTER
        if master.startswith("local"):
            return []
        if master == "yarn" and not any(os.environ.get(name) for name in HADOOP):
            raise SettingsError(
                "master", f"yarn needs the directory of its configuration; set {HADOOP[0]} to it"
            )
        if master.startswith("k8s://"):
            if IMAGE not in self.conf:
                raise SettingsError("conf", f"Kubernetes needs an image of the executors; set {IMAGE}")
            return [f"in the image {self.conf[IMAGE]}, {each}" for each in needs(is_packed=self.pack)]
        return [f"on every worker, {each}" for each in needs(is_packed=self.pack)]


def check_java() -> None:
    """Raises SettingsError if Java is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise SettingsError(
            "java", f"Spark needs Java {JAVA_MAJOR_MIN} or newer, but {where}; install a JRE, or use --remote"
        )
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    words = (done.stderr or done.stdout).split('"')
    major = words[1].split(".")[0] if len(words) > 1 else ""
    if major.isdecimal() and int(major) < JAVA_MAJOR_MIN:
        raise SettingsError(
            "java", f"Spark needs Java {JAVA_MAJOR_MIN} or newer; {java} is version {words[1]}"
        )


def check_server(settings: SessionSettings) -> None:
    """Raise SettingsError if master or Connect server cannot be reached: Spark would retry for minutes."""
    kind, _, places = (settings.remote or settings.master or "").partition("://")
    if kind not in PORTS or (kind == "sc" and getproxies()):  # gRPC uses the proxy
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
    raise SettingsError("remote" if settings.remote else "master", f"cannot connect to {places}: {reason}")


@contextmanager
def session(settings: SessionSettings) -> Iterator[SparkSession]:
    """A session with our formats registered, stopped on exit. Raises SettingsError."""
    if settings.remote is None:
        check_java()
    check_server(settings)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers use the first python on the PATH
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

    values = {**STATIC, **DYNAMIC, **packed, **settings.conf, **java_options(settings.conf)}
    conf = SparkConf().setAppName(settings.name).setMaster(settings.master or LOCAL_MASTER)
    conf.setAll(list(values.items()))
    if SparkContext._gateway is None:  # a JVM outlives its sessions
        SparkContext(conf=conf, gateway=launch_jvm(conf))
    return SparkSession.builder.config(conf=conf).getOrCreate()


def register(spark: SparkSession) -> None:
    """Register our formats. Unlike formats that Spark finds itself, registered ones reach the workers."""
    from skylark.pipelines.lake.table_sink import TableSource  # noqa: PLC0415
    from skylark.pipelines.source import RocketMQSource  # noqa: PLC0415

    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(TableSource)


def probe(spark: SparkSession) -> None:
    """Run a task that imports our dependencies. Raises SettingsError that names host and interpreter."""
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.functions import col, udf  # noqa: PLC0415

    def look(_: int) -> str:  # nested, so that it is pickled by value: workers may lack the package
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
            log.warning("skylark versions differ workers=%s driver=%s", sentence.split()[1], __version__)


@contextmanager
def _packed_environment(settings: SessionSettings) -> Iterator[Mapping[str, str]]:
    """Pack this environment for the workers; changes the directory so that its path is the same there."""
    if not settings.pack:
        yield {}
        return
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="skylark-pack-") as folder:
        archive = Path(folder) / f"{PACKED}.tar.gz"
        pack(archive)
        (Path(folder) / PACKED).symlink_to(sys.prefix)
        os.environ["PYSPARK_PYTHON"] = f"./{PACKED}/bin/python"
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.chdir(folder)
        try:
            setting = "spark.yarn.dist.archives" if settings.master == "yarn" else "spark.archives"
            yield {setting: f"{archive}#{PACKED}"}
        finally:
            os.chdir(before)
