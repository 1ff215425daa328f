"""One broker and one Spark for the stories of data engineers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.first_day import Servers, serving
from tests.support.spark_shell import SparkShell, spark_shell


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkShell]:
    with spark_shell(tmp_path_factory.mktemp("spark") / "spark.log") as running:
        yield running
