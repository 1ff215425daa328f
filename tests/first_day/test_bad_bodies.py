"""Bodies that cannot be used are counted, by whatever job reads them."""

from pathlib import Path

import pytest

from skylark import Message, Producer
from tests.support.first_day import Servers
from tests.support.spark_shell import SparkShell

PIPELINE = """
name: shop
source: {topic: users, namesrv: "NAMESRV"}
steps:
  - decode: {format: json, schema: "op string, after struct<id: bigint, name: string>"}
  - sql: >-
      select after.id, after.name from input where after.id < 20
      union all select after.id, after.name from input where after.id >= 20
sinks:
  - delta: {path: run}
rejects: {table: rejects}
"""


def counts(read: int, written: int, filtered: int, rejected: int) -> dict[str, int]:
    assert read == written + filtered + rejected
    return {
        "read": read, "added": 0, "written": written, "filtered": filtered, "rejected": rejected,
        "duplicates": 0,
    }  # fmt: skip


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_job_tells_what_became_of_the_messages(
    servers: Servers, spark: SparkShell, tmp_path: Path
) -> None:
    servers.run("topic", "create", "users", "-q", 1)
    bodies = [b'{"op": "c", "after": {"id": %d, "name": "user"}}' % number for number in range(30)]
    bodies += [b"<xml/>", b'{"op": "c", "after": ', b'{"op": "c", "after": {"name": "nobody"}}']
    with Producer("database", namesrv=servers.namesrv) as producer:
        for body in bodies:
            producer.send(Message("users", body))
    place = ("-n", servers.namesrv, "-t", "users", "--once")
    schema = "op string, after struct<id: bigint, name: string>"

    lake = ("--to", f"delta:{tmp_path / 'etl'}", "--rejects", f"delta:{tmp_path / 'bad'}")
    done = spark.json("etl", *place, *lake, "--schema", schema, "--where", "after.id >= 10")
    assert done["counts"] == counts(33, 20, 11, 2)
    assert done["details"]["rejected_at"].startswith("users/")

    table = ("--keys", "id", "--schema", "id bigint, name string", "--to", f"delta:{tmp_path / 'cdc'}")
    done = spark.json("cdc", *place, *table)
    assert done["counts"] == counts(33, 30, 0, 3)
    assert done["details"]["rejected_at"].startswith("users/")

    file = tmp_path / "pipeline.yml"
    file.write_text(PIPELINE.replace("NAMESRV", servers.namesrv))
    done = spark.json("run", file, "--once", "--state", tmp_path / "state")
    assert done["counts"] == counts(33, 30, 1, 2)

    rows = [
        row for row in servers.json("spark", "list") if not row["job"].startswith("archive")
    ]  # of other tests
    assert sorted((row["job"].split("-")[0], row["state"], row["rows"], row["rejected"]) for row in rows) == [
        ("cdc", "finished", 33, 3),
        ("etl", "finished", 33, 2),
        ("shop", "finished", 33, 2),
    ]
