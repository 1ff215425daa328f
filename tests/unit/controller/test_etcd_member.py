"""Members of an etcd on this machine."""

from __future__ import annotations

from pathlib import Path

from skylark.controller.etcd_member import EtcdMember


def test_each_member_knows_all() -> None:
    members = [EtcdMember("etcd-0", 2379), EtcdMember("etcd-1", 2389)]
    words = members[1].command("etcd", Path("/store"), members)
    values = dict(zip(words[1::2], words[2::2], strict=True))
    assert values["--name"] == "etcd-1"
    assert values["--data-dir"] == "/store/data"
    assert values["--listen-client-urls"] == "http://127.0.0.1:2389"
    assert values["--initial-advertise-peer-urls"] == "http://127.0.0.1:2390"
    assert values["--initial-cluster"] == "etcd-0=http://127.0.0.1:2380,etcd-1=http://127.0.0.1:2390"
