"""The topic attribute `lake.table` with Apache's tools: its admin sets it, its broker keeps it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skylark import Admin
from skylark.errors import RocketMQError
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import PATIENT, SMALL, ApacheServers
from tests.support.skylark_servers import SkylarkServers

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "mvn")]
TOPIC = "orders"


def attributes(admin: Admin) -> list[dict[str, str]]:
    return [dict(topic.attributes) for topic in admin.topics.config(TOPIC).answers.values()]


def test_apache_sets_and_keeps_the_attribute(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with SkylarkServers(ours, {"registerNameServerPeriod": 1000}) as servers:
        tool = MqAdmin(admin_classpath(), servers.name_server, tmp_path)
        place = ["updateTopic", "-b", servers.broker, "-t", TOPIC]
        made, refused = tool.run([*place, "-a", "+lake.table=raw"], [*place, "-a", "+lake.table=a b"])
        assert "success" in made
        assert "invalid value" in refused
        with Admin(namesrv=servers.name_server) as admin:
            assert attributes(admin) == [{"lake.table": "raw"}]
        servers.stop()
    shutil.copytree(ours / "data" / "config", theirs / "store" / "config")
    with ApacheServers(theirs, {**SMALL, **PATIENT}) as apache, Admin(namesrv=apache.name_server) as admin:
        assert attributes(admin) == [{"lake.table": "raw"}]
        admin.topics.update(TOPIC, read_queues=4)
        assert attributes(admin) == [{"lake.table": "raw"}]
        with pytest.raises(RocketMQError, match=r"unsupported key: lake\.table"):
            admin.topics.update(TOPIC, attributes={"lake.table": "other"})
