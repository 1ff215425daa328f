"""Servers of Spark from the installed pyspark: a cluster of a master and two workers, and a Connect server.

Spark never runs a second copy of a task on the host of the first, so the second worker is on 127.0.0.2.
Every process has its own home, with Spark at another path.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from skylark.processes import GroupProcess, PortReservation

START_TIMEOUT_S = 180
SPARK_HOME = Path(pyspark.__file__).parent
WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class SparkCluster:
    """Starts on entering, is killed on leaving."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self._directory = directory
        self._port = PortReservation(0, 1)
        self._python = python
        self._processes: list[GroupProcess] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port.base}"

    @property
    def workers(self) -> list[int]:
        """The processes that start executors."""
        return [process.pid for process in self._processes[1:]]

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._port.release()
        port = self._port.base
        where = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(port + 1)]
        try:
            self._start("master", "org.apache.spark.deploy.master.Master", where)
            self._processes[0].wait_until(lambda: listens(port), "the master", START_TIMEOUT_S)
            for host in WORKER_HOSTS:
                where = ["-c", "1", "-m", "1g", "--host", host, "--webui-port", "0", self.master]
                self._start(f"worker-{host}", "org.apache.spark.deploy.worker.Worker", where)
            for number, process in enumerate(self._processes[1:]):
                process.wait_until(lambda at=number: self._registered(at), "a worker", START_TIMEOUT_S)  # type: ignore[misc]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, name: str, main_class: str, arguments: list[str]) -> None:
        home = self._directory / f"home-{name}"
        home.mkdir()
        (home / "spark").symlink_to(SPARK_HOME)
        environment = {
            "HOME": str(home),
            "SPARK_HOME": str(home / "spark"),
            "PYSPARK_PYTHON": self._python,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_WORKER_DIR": str(self._directory / name),
        }
        command = [str(home / "spark" / "bin" / "spark-class"), main_class, *arguments]
        process = GroupProcess(command, log=self._directory / f"{name}.log", env=environment)
        self._processes.append(process)

    def _registered(self, number: int) -> bool:
        log = self._directory / f"worker-{WORKER_HOSTS[number]}.log"
        return "Successfully registered with master" in log.read_text(errors="replace")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.kill()
        self._processes.clear()


class ConnectServer:
    """A Spark Connect server on a port of its own: starts on entering, is killed on leaving."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = PortReservation(0)
        self._process: GroupProcess | None = None

    @property
    def remote(self) -> str:
        return f"sc://127.0.0.1:{self._port.base}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._port.release()
        port = self._port.base
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        environment = {
            "SPARK_HOME": str(SPARK_HOME),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONNECT_MODE": "0",
        }
        self._process = GroupProcess(
            command, log=self._directory / "connect.log", env=environment, directory=self._directory
        )
        try:
            self._process.wait_until(lambda: listens(port), "the server", START_TIMEOUT_S)
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
