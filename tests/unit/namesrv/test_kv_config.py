"""The key-value configuration and its file."""

import pytest

from skylark.errors import BrokerError
from skylark.namesrv.kv_config import KvConfig, decode_tables, encode_tables


@pytest.fixture
def config() -> KvConfig:
    return KvConfig(entries_max=6, chars_max=40)


def test_values_are_set_replaced_and_deleted(config: KvConfig) -> None:
    config.put("ns", "k", "v")
    config.put("ns", "k", "w")
    assert config.get("ns", "k") == "w"
    assert config.get("ns", "x") is None
    assert config.get("x", "k") is None
    assert config.table("x") is None
    config.delete("ns", "k")
    config.delete("ns", "k")
    config.delete("x", "k")
    assert config.get("ns", "k") is None
    assert config.table("ns") == {}, "a namespace stays"


def test_the_generation_moves_with_every_change(config: KvConfig) -> None:
    config.put("ns", "k", "v")
    config.put("ns", "k", "w")
    config.delete("ns", "k")
    config.delete("ns", "k")
    assert config.generation == 3


def test_a_snapshot_does_not_change(config: KvConfig) -> None:
    config.put("ns", "k", "v")
    snapshot = config.snapshot()
    config.put("ns", "k", "w")
    assert snapshot == {"ns": {"k": "v"}}


def test_entries_are_limited_namespaces_included(config: KvConfig) -> None:
    for namespace in "ab":
        config.put(namespace, "k", "v")
        config.put(namespace, "l", "v")
    for namespace, key in (("a", "m"), ("c", "k")):
        with pytest.raises(BrokerError, match="no more than 6 entries") as caught:
            config.put(namespace, key, "v")
        assert caught.value.code == 1
    config.put("a", "k", "w")
    config.delete("a", "k")
    config.put("a", "m", "v")


def test_characters_are_limited(config: KvConfig) -> None:
    config.put("ns", "key", "v" * 35)
    with pytest.raises(BrokerError, match="no more than 40 characters"):
        config.put("ns", "key", "v" * 36)
    config.put("ns", "key", "v")
    config.put("ns", "k", "v" * 30)
    config.delete("ns", "k")
    config.put("ns", "l", "v" * 30)
    with pytest.raises(BrokerError, match="no more than 40 characters"):
        config.put("ns", "m", "v" * 30)
    assert config.table("ns") == {"key": "v", "l": "v" * 30}


def test_what_a_file_held_counts(config: KvConfig) -> None:
    config.restore({"ns": {"key": "v" * 50}})
    with pytest.raises(BrokerError, match="no more than 40 characters"):
        config.put("ns", "k", "v")
    config.put("ns", "key", "v" * 45)
    assert config.get("ns", "key") == "v" * 45, "what becomes less may always"


def test_the_file_is_rocketmqs_own() -> None:
    tables = {"ORDER_TOPIC_CONFIG": {"b": "broker-a:4;broker-b:4", "a": "ü"}, "empty": {}}
    text = (
        '{\n\t"configTable":{\n\t\t"ORDER_TOPIC_CONFIG":{\n\t\t\t"a":"ü",\n\t\t\t"b":"broker-a:4;broker-b:4"\n'
        '\t\t},\n\t\t"empty":{}\n\t}\n}'
    )
    assert encode_tables(tables) == text.encode()
    assert decode_tables(text.encode()) == tables
    assert decode_tables(b"{configTable:{'ns':{'k':'v'}},\"more\":2}") == {"ns": {"k": "v"}}
    assert decode_tables(b"{}") == {}


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"configTable":[]}', b'{"configTable":{"ns":1}}', b"\xff"])
def test_a_file_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_tables(data)
