"""Apache Iceberg's own REST catalog server for tests, with its warehouse in an S3 server."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

from benchmarks.peers.java import jvm_command
from skylark.processes import PortReservation, Server
from tests.support.java import jars_of
from tests.support.s3_server import BUCKET, variables

POM = Path(__file__).parents[1] / "pipelines" / "java" / "pom-iceberg-rest.xml"
HEAP_MB = 256


class IcebergRestServer(Server):
    """The catalog; it keeps its tables in SQLite below `home`."""

    title = "iceberg-rest"

    def __init__(self, home: Path, s3_endpoint: str) -> None:
        super().__init__(home, PortReservation(0))
        self._jars = jars_of(POM)
        self._s3_endpoint = s3_endpoint

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def command(self, start: int) -> list[str]:
        main_class = "org.apache.iceberg.rest.RESTCatalogServer"
        return jvm_command(self._jars, main_class, home=self.home, heap_mb=HEAP_MB)

    def environment(self) -> dict[str, str]:
        return {
            **variables(self._s3_endpoint),
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_URI": f"jdbc:sqlite:{self.home}/catalog.db",
            "CATALOG_WAREHOUSE": f"s3://{BUCKET}/warehouse",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": self._s3_endpoint,
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        }

    def wait_until_serving(self) -> None:
        self._running().wait_until(self._answers, "serving", self.start_timeout_s)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.address, timeout=5)
        try:
            connection.request("GET", "/v1/config")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


def use_rest_catalog(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let pyiceberg use this catalog, here and in processes that are started."""
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", endpoint)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it reads the environment once
