"""An archive is run again by another user, with another state, and without its table."""

import shutil
from pathlib import Path

import pytest

from skylark import Message, Producer
from tests.support.first_day import Servers
from tests.support.spark_shell import SparkShell


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_nothing_is_archived_twice_and_a_moved_table_is_noticed(
    servers: Servers, spark: SparkShell, tmp_path: Path
) -> None:
    servers.run("topic", "create", "archived", "-q", 2)
    with Producer("shop", namesrv=servers.namesrv) as producer:
        for number in range(200):
            producer.send(Message("archived", b"order %d" % number, tags="paid" if number % 4 else "created"))
    lake = tmp_path / "lake"
    job = ("archive", "-n", servers.namesrv, "-t", "archived", "--to", f"delta:{lake}", "--once")

    first = spark.json(*job)
    assert first["counts"] == {
        "read": 200, "added": 0, "written": 200, "filtered": 0, "rejected": 0, "duplicates": 0,
    }  # fmt: skip
    assert Path(first["state"]).is_relative_to(lake)
    assert spark.json(*job)["counts"]["read"] == 0

    refused = spark.run(*job, "--state", tmp_path / "of-another-user", code=2)
    assert "already holds archived/" in refused
    assert "--from table" in refused
    told = spark.run("sql", "select count(*) n from raw", "--archive", f"raw=delta:{lake}", "--json")
    assert '{"n":200}' in told

    state = tmp_path / "state"
    shutil.move(first["state"], state)
    shutil.move(lake, tmp_path / "moved")
    refused = spark.run(*job, "--state", state, code=2)
    assert "holds none of them; restore the table, or delete that directory" in refused
    assert not lake.exists()
