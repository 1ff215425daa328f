"""Several brokers on one machine: each has metrics, and says where."""

import re
import socket
from pathlib import Path

from tests.support.first_day import Servers, scraped, server


def test_a_taken_metrics_port_becomes_the_next_free_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ("--namesrv-port", 0, "--broker-port", 0, "--set", f"metricsPromExporterPort={port}")
        with (
            server(tmp_path / "1.log", "serve", "--data", tmp_path / "1", *flags) as first,
            server(tmp_path / "2.log", "serve", "--data", tmp_path / "2", *flags, "--brokers", 2) as second,
        ):
            second.until("name server on .* 2 brokers")
            first.until("health .*")
            found = re.findall(
                r"metrics (http://127.0.0.1:(\d+)/metrics), health http://127.0.0.1:\d+/health"
                rf"(?: \(port ({port}|{port + 1}) is taken\))?\n",
                first.text + second.text,
            )
            ports = {int(used) for _, used, _ in found}
            assert len(ports) == 3, first.text + second.text
            assert port not in ports
            assert all(reason or int(used) == port + 1 for _, used, reason in found)
            for url, *_ in found:
                assert scraped(url, "skylark_store_writable") == {(): 1}
            checked = Servers(first).run("doctor", "--data", tmp_path / "1", "--json")
            [own] = re.findall(r"metrics (http://\S+/metrics)", first.text)
            assert f"metrics {own}" in checked
