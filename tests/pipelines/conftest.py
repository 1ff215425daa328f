"""One Spark session for all tests of the pipelines, and brokers that they may stop and start."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop.servers import ApacheServers
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.signals import heeded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.ui.showConsoleProgress": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A `local[2]` session whose tasks are tried four times, with the source registered."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from skylark.pipelines.jobs import session as jvm
    from skylark.pipelines.source import register

    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    conf = SparkConf().setMaster("local[2,4]").setAppName("tests").setAll(list(settings.items()))
    with warnings.catch_warnings(), heeded(signal.SIGINT):  # Spark would handle it for all later tests
        warnings.simplefilter("ignore")
        if SparkContext._gateway is None:  # a test with a session of its own may have started the JVM
            SparkContext(conf=conf, gateway=jvm.launch_jvm(conf))
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineCluster]:
    """A name server and a broker for tests that neither stop nor fill them."""
    with PipelineCluster(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture(scope="session")
def apache_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineCluster]:
    """Apache's name server and broker, one pair for the tests of source and sink."""
    directory = tmp_path_factory.mktemp("apache")
    servers = ApacheServers(directory, {"enablePropertyFilter": "true"})
    with PipelineCluster(directory, servers=servers) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PipelineCluster]:
    """A name server and a broker of a test's own."""
    with PipelineCluster(tmp_path / "cluster") as running:
        yield running
