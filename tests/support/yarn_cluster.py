"""YARN from Hadoop's own jars: a resource manager and a node manager, and the configuration for clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

from skylark.processes import HOST, GroupProcess, PortReservation
from tests.support.java import jars_of
from tests.support.spark_cluster import SPARK_HOME

POM = Path(__file__).parents[1] / "pipelines" / "java" / "pom-hadoop.xml"
SERVERS = {
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
ADDRESSES = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
JAVA_OPTIONS = ("-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
LOG4J = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
"""
SPARK_CONF = {
    # Its nodes have Spark; otherwise all its jars would be sent to them.
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
    "spark.driver.host": HOST,
    "spark.executor.memory": "512m",
    "spark.yarn.am.memory": "512m",
}
"""What jobs in this cluster need."""
START_TIMEOUT_S = 180
ANSWER_TIMEOUT_S = 10


class YarnCluster:
    """Starts on entering, is killed on leaving. Containers run as this user, without limits of memory."""

    def __init__(self, directory: Path) -> None:
        self.configuration = directory / "conf"
        """What HADOOP_CONF_DIR is to name."""
        self._directory = directory
        self._ports = PortReservation(*range(len(ADDRESSES)))
        self._processes: list[GroupProcess] = []

    def __enter__(self) -> Self:
        jars = jars_of(POM)
        self.configuration.mkdir(parents=True)
        self._write("core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self._directory / "tmp"})
        self._write("yarn-site.xml", self._settings())
        (self.configuration / "log4j.properties").write_text(LOG4J)
        self._ports.release()
        try:
            for name, program in SERVERS.items():
                command = ["java", *JAVA_OPTIONS, "-cp", f"{self.configuration}:{jars}", program]
                log = self._directory / f"{name}.log"
                self._processes.append(GroupProcess(command, log=log, directory=self._directory))
            for process in self._processes:
                process.wait_until(self._has_node, "YARN with a node", START_TIMEOUT_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _settings(self) -> dict[str, object]:
        node = {f"yarn.nodemanager.{name}address": f"{HOST}:0" for name in ("", "localizer.", "webapp.")}
        return node | {
            **{
                f"yarn.resourcemanager.{name}": f"{HOST}:{self._ports.base + number}"
                for number, name in enumerate(ADDRESSES)
            },
            "yarn.resourcemanager.scheduler.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
            ),
            "yarn.scheduler.minimum-allocation-mb": 256,
            "yarn.nodemanager.local-dirs": self._directory / "local",
            "yarn.nodemanager.log-dirs": self._directory / "containers",
            "yarn.nodemanager.resource.memory-mb": 6144,
            "yarn.nodemanager.resource.cpu-vcores": 4,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
        }

    def _write(self, name: str, settings: Mapping[str, object]) -> None:
        lines = [
            f"<property><name>{key}</name><value>{value}</value></property>"
            for key, value in settings.items()
        ]
        text = "\n".join(["<configuration>", *lines, "</configuration>"])
        (self.configuration / name).write_text(text)

    def ask(self, what: str) -> Any:
        """What the resource manager answers to a question of its REST interface, such as `apps`."""
        port = self._ports.base + ADDRESSES.index("webapp.address")
        with urlopen(f"http://{HOST}:{port}/ws/v1/cluster/{what}", timeout=ANSWER_TIMEOUT_S) as answer:
            return json.load(answer)[what]

    def _has_node(self) -> bool:
        try:
            return any(node["state"] == "RUNNING" for node in (self.ask("nodes") or {}).get("node", ()))
        except (URLError, OSError):
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.kill()
        self._processes.clear()
