"""Source and sink with credentials: requests are signed, and Spark neither shows nor keeps secrets."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skylark import Admin
from skylark.admin.results import AclRule
from skylark.certificates import make_directory
from skylark.errors import NoPermission, SettingsError
from skylark.model.message import encode_properties
from skylark.pipelines.cluster_client import shared_client
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import Planner, read_ranges
from skylark.pipelines.row_sender import OutMessage, RowSender
from skylark.pipelines.schema import arrow_schema, columns_schema
from skylark.pipelines.sink import SinkOptions
from skylark.settings.auth import AuthSettings
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import Credentials
from skylark.testing import EmbeddedServers
from tests.support import spark_program
from tests.support.names import fresh_name
from tests.support.skylark_servers import SkylarkServers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "sparks-own-secret"
USER = Credentials("spark", SECRET)
AUTH = AuthSettings(
    enabled=True,
    authorization=True,
    first_user='{"username":"root","password":"root-secret"}',
    failures_max=0,
)
ROWS = 50
SCRIPT_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """Of a broker with access control and a user `spark` with rights to `spark-*`."""
    with EmbeddedServers(settings={"auth": AUTH}) as servers:
        root = ClientSettings(access_key="root", secret_key="root-secret")
        with Admin(namesrv=servers.namesrv, client=root) as admin:
            admin.users.create(USER.access_key, SECRET)
            rules = [
                AclRule("Topic:spark-*", ("Pub", "Sub", "Get", "Create")),
                AclRule("Group:TOOLS_CONSUMER", ("Sub",)),
            ]
            admin.acls.create(USER.access_key, rules)
        yield servers.namesrv


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.touch(mode=0o600)
    path.write_text(f"accessKey=spark\nsecretKey={SECRET}\n")
    return path


@pytest.fixture
def topic(namesrv: str) -> str:
    name = fresh_name("spark")
    with Admin(namesrv=namesrv, client=ClientSettings(access_key="spark", secret_key=SECRET)) as admin:
        admin.topics.create(name, queues=1)
    return name


def test_options_take_credentials_and_do_not_show_them(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_keys = {"namesrv": "h:1", "accesskey": "spark", "secretkey": SECRET}
    by_file = {"namesrv": "h:1", "credentialsfile": str(file)}
    for given in (by_keys, by_file):
        for options in (load(SourceOptions, {**given, "topic": "t"}), load(SinkOptions, given)):
            assert options.credentials == USER
            assert SECRET not in repr(options)
            assert pickle.loads(pickle.dumps(options)).credentials == USER  # noqa: S301 (as Spark does)
    monkeypatch.setenv("SKYLARK_CREDENTIALS_FILE", str(file))
    assert load(SinkOptions, {"namesrv": "h:1"}).credentials == USER
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        load(SinkOptions, by_file)


def test_workers_send_and_read_with_credentials(namesrv: str, file: Path, topic: str) -> None:
    sender = RowSender(shared_client(namesrv, credentials=USER), group="g")
    for number in range(ROWS):
        sender.send(OutMessage(topic, b"%d" % number, encode_properties({"UNIQ_KEY": f"{number:032X}"})))
    sender.finish()
    options = load(SourceOptions, {"namesrv": namesrv, "topic": topic, "credentialsFile": str(file)})
    schema = arrow_schema(columns_schema(["body"]))
    ranges = Planner(options).batch_ranges()
    bodies = [row["body"] for batch in read_ranges(options, ranges, schema) for row in batch.to_pylist()]
    assert bodies == [b"%d" % number for number in range(ROWS)]
    with pytest.raises(NoPermission, match="username cannot be null"):
        Planner(load(SourceOptions, {"namesrv": namesrv, "topic": topic})).batch_ranges()


@pytest.mark.nightly
def test_spark_shows_and_keeps_no_secret(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"namesrv": namesrv, "accessKey": "spark", "secretKey": SECRET}
    rows = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("rocketmq").options(**options, topic=topic).mode("append").save()
    read = spark.read.format("rocketmq").options(**options, topic=topic).load()
    read.explain(True)
    assert read.count() == ROWS
    stream = spark.readStream.format("rocketmq").options(**options, topic=topic, startingOffsets="earliest")
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    shown = capsys.readouterr().out + str(query.lastProgress) + str(read._jdf.queryExecution())
    assert SECRET not in shown
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("offsets" in str(path) for path in kept)
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
    assert spark.read.parquet(str(tmp_path / "table")).count() == ROWS


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_session_over_tls_shows_and_keeps_no_secret(tmp_path: Path) -> None:
    """Plans, pages and REST answers of the user interface, event log, checkpoint: searched for the secret."""
    certificates = make_directory(tmp_path / "certificates", ["127.0.0.1"], days=2)
    root = {"username": "root", "password": "root-secret"}
    inner = {"accessKey": "inner", "secretKey": "inner-secret"}
    settings: dict[str, str | int] = {
        "tls.config.file": str(certificates.properties),
        "tls.server.mode": "permissive",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(root),
        "innerClientAuthenticationCredentials": json.dumps(inner),
    }
    topic, place = "spark-tls", tmp_path / "session"
    place.mkdir()
    with SkylarkServers(tmp_path / "servers", settings) as servers:
        client = ClientSettings(
            access_key="root", secret_key="root-secret", tls=True, tls_trusted=certificates.authority
        )
        with Admin(namesrv=servers.name_server, client=client) as admin:
            admin.users.create(USER.access_key, SECRET)
            rules = [
                AclRule("Topic:spark-*", ("Pub", "Sub", "Get", "Create")),
                AclRule("Group:TOOLS_CONSUMER", ("Sub",)),
            ]
            admin.acls.create(USER.access_key, rules)
            admin.topics.create(topic, queues=2)
        options = {
            "accessKey": USER.access_key, "secretKey": SECRET, "tls": "true",
            "tlsTrusted": str(certificates.authority),
        }  # fmt: skip
        script = str(Path(__file__).parent / "secret_session.py")
        command = [
            sys.executable,
            script,
            servers.name_server,
            topic,
            json.dumps(options),
            str(ROWS),
            str(place),
        ]
        output = spark_program.run(command, tmp_path / "script.log", SCRIPT_TIMEOUT_S)
    assert spark_program.last_object(output) == {"counted": ROWS, "streamed": ROWS}
    kept = {path.relative_to(place).as_posix(): path for path in place.rglob("*") if path.is_file()}
    for part in ("events/", "checkpoint/", "shown/plan", "shown/SQL", "shown/rest_sql", "shown/environment"):
        assert any(name.startswith(part) for name in kept), (part, sorted(kept))
    assert b"rocketmq" in kept["shown/plan"].read_bytes().lower()
    assert not [name for name, path in kept.items() if SECRET.encode() in path.read_bytes()]
    assert SECRET not in output
