"""Loading settings: files, environment and flags, RocketMQ's keys, and what is said about mistakes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import SettingsError
from skylark.settings import BrokerSettings, FlushMode, NameServerSettings, StoreSettings
from skylark.settings.live import LiveSettings, plan_update
from skylark.settings.loader import LoadedSettings, all_settings, known_settings, load_settings, to_properties
from skylark.settings.properties import read_properties, write_properties
from skylark.settings.rocketmq_keys import REFUSED_KEYS, UNUSED_KEYS
from tests.unit.protocol.golden_frames import captured

DOCS = Path(__file__).parents[3] / "docs" / "reference"
GOLDEN = Path(__file__).parents[2] / "golden"
PREFIX = "SKYLARK_BROKER_"


def load(**sources: Any) -> LoadedSettings[BrokerSettings]:
    return load_settings(BrokerSettings, prefix=PREFIX, **sources)


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


# --- Sources ---


def test_without_sources_there_are_the_defaults() -> None:
    loaded = load()
    assert loaded.settings == BrokerSettings()
    assert (loaded.settings.host, loaded.settings.port) == ("127.0.0.1", 10911)
    assert (loaded.origins, loaded.warnings) == ({}, ())


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "broker.conf", "brokerName=f\nbrokerClusterName=f\nregionId=f\nlistenPort=1000\n")
    environment = {f"{PREFIX}CLUSTER": "e", f"{PREFIX}REGION": "e", "HOME": "/", "SKYLARK_NAMESRV_PORT": "1"}
    loaded = load(file=file, environment=environment, flags={"region": "c"})
    settings = loaded.settings
    assert (settings.name, settings.cluster, settings.region, settings.port) == ("f", "e", "c", 1000)
    assert loaded.origins == {
        "name": "broker.conf line 1",
        "cluster": "environment SKYLARK_BROKER_CLUSTER",
        "region": "command line",
        "port": "broker.conf line 4",
    }
    assert loaded.warnings == ()


def test_rocketmqs_own_variable_counts_less_than_the_file(tmp_path: Path) -> None:
    environment = {"NAMESRV_ADDR": "a:1"}
    assert load(environment=environment).settings.name_servers == "a:1"
    file = write(tmp_path, "b.conf", "namesrvAddr=b:1")
    assert load(environment=environment, file=file).settings.name_servers == "b:1"
    assert load_settings(NameServerSettings, environment=environment).settings == NameServerSettings()


def test_toml_takes_both_spellings_and_tables(tmp_path: Path) -> None:
    text = 'listenPort = 4000\nname = "b"\ntrace_on = false\nmaxMessageSize = "9000"\n'
    text += '[store]\nflush_mode = "SYNC"\n'
    settings = load(file=write(tmp_path, "b.toml", text)).settings
    assert settings == BrokerSettings(
        port=4000,
        name="b",
        trace_on=False,
        store=StoreSettings(message_bytes_max=9000, flush_mode=FlushMode.SYNC),
    )


def test_nested_settings_are_named_by_their_path(tmp_path: Path) -> None:
    file = write(tmp_path, "b.conf", "store.path = somewhere\nstore.flush_mode: sync\n")
    environment = {f"{PREFIX}STORE_RESERVED_HOURS": "1"}
    settings = load(file=file, environment=environment, flags={"store.index_enabled": False}).settings
    assert settings.config_directory == Path("somewhere/config")
    assert settings.store == StoreSettings(
        path=Path("somewhere"), flush_mode=FlushMode.SYNC, reserved_hours=1, index_enabled=False
    )


def test_flags_may_be_typed() -> None:
    flags = {"port": 5, "store.path": Path("x"), "trace_on": False, "store.flush_mode": FlushMode.SYNC}
    settings = load(flags=flags).settings
    assert (settings.port, settings.store.path, settings.trace_on) == (5, Path("x"), False)


def test_empty_text_is_no_value_where_there_may_be_none(tmp_path: Path) -> None:
    file = write(tmp_path, "b.conf", "haListenPort=\nstorePathCommitLog=\nbrokerIP1=\n")
    settings = load(file=file).settings
    assert (settings.replica_port, settings.store.commit_log_path, settings.advertised_host) == (
        None,
        None,
        "",
    )


def test_what_is_given_twice_is_a_warning_and_the_later_wins(tmp_path: Path) -> None:
    file = write(tmp_path, "b.conf", "listenPort=1000\n# again\nport=2000\n")
    loaded = load(file=file)
    assert loaded.settings.port == 2000
    assert loaded.warnings == ("port is set twice: b.conf line 3 overrides b.conf line 1",)


# --- Mistakes ---


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("listenPort", "99999", "99999 is out of range; use 0 to 65534"),
        ("listenPort", "-1", "-1 is out of range; use 0 to 65534"),
        ("listenPort", "x", "invalid value 'x'; use 0 to 65534"),
        ("listenPort", "1.5", "invalid value '1.5'; use 0 to 65534"),
        ("listenPort", "", "invalid value ''; use 0 to 65534"),
        ("listenPort", "9" * 5000, "9'; use 0 to 65534"),
        ("topics_max", "0", "0 is out of range; use at least 1"),
        ("traceOn", "yes", "invalid value 'yes'; use true or false"),
        ("flushDiskType", "NEVER", "invalid value 'NEVER'; use ASYNC_FLUSH or SYNC_FLUSH"),
        ("storePathRootDir", "", "invalid value ''; use a path"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_what_is_allowed(
    tmp_path: Path, key: str, value: str, said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(file=write(tmp_path, "b.conf", f"# comment\n{key}={value}\n"))
    assert caught.value.name == key
    assert said in caught.value.reason
    assert caught.value.reason.endswith("(b.conf line 2)")


@pytest.mark.parametrize("text", ["port = true", "port = 1.5", "trace_on = 1", "name = 5", "name = [1]"])
def test_a_value_of_a_wrong_type_in_toml(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="invalid value"):
        load(file=write(tmp_path, "b.toml", text))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"port": "2"}, "leaves no room for the fast port"),
        ({"brokerName": "../x"}, "use 1 to 100 of the characters"),
        ({"brokerClusterName": ""}, "use 1 to 100 of the characters"),
        ({"brokerName": "b" * 101}, "use 1 to 100 of the characters"),
        ({"messageDelayLevel": "1x"}, "use a number with s, m, h or d"),
        ({"deleteWhen": "25"}, "use 0 to 23"),
    ],
)
def test_values_that_are_more_than_numbers_are_looked_at_too(flags: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load(flags=flags)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("listnPort", "listenPort"),
        ("autoCreateTopicEnabled", "autoCreateTopicEnable"),
        ("prot", "port"),
        ("store.flush_mod", "store.flush_mode"),
        ("transactionTimeout", "transactionTimeOut"),
    ],
)
def test_a_key_that_nobody_knows_is_an_error_with_the_nearest_name(key: str, near: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(flags={key: "1"})
    assert caught.value.reason == f"unknown setting; did you mean {near}? (command line)"


def test_a_key_that_is_like_none() -> None:
    with pytest.raises(SettingsError) as caught:
        load(flags={"zzzzzzzz": "1"})
    assert caught.value.reason == "unknown setting (command line)"


def test_a_variable_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(SettingsError) as caught:
        load(environment={"SKYLARK_BROKER_PRT": "1"})
    assert (caught.value.name, caught.value.reason) == (
        "SKYLARK_BROKER_PRT",
        "unknown setting; did you mean SKYLARK_BROKER_PORT?",
    )


@pytest.mark.parametrize(
    ("name", "text"), [("b.toml", "port = "), ("b.toml", "\x00"), ("missing.conf", None), ("b.conf", None)]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    elif name == "b.conf":
        path.write_bytes(b"\xff=1")
    with pytest.raises(SettingsError) as caught:
        load(file=path)
    assert caught.value.name == str(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("key", ["namesrvAddr", "slaveOf", "haMasterAddress"])
@pytest.mark.parametrize("address", ["somewhere", ":9876", "somewhere:port", "somewhere:65536"])
def test_an_address_that_is_none(key: str, address: str) -> None:
    with pytest.raises(SettingsError, match=f"invalid address '{address}'; use host:port"):
        load(flags={key: address})


# --- RocketMQ's keys ---


def golden_properties(scenario: str, code: int) -> str:
    """What Apache's servers print as their whole configuration."""
    frames = [frame for frame in captured(scenario) if frame.asked is not None and frame.asked.code == code]
    return frames[0].body.decode()


def test_apaches_whole_configuration_is_taken(tmp_path: Path) -> None:
    """Each of its keys is a setting, at its default, or a warning with a reason; none is unknown."""
    text = golden_properties("probe-admin", 26)
    loaded = load(file=write(tmp_path, "b.conf", text))
    keys = {item.key for item in read_properties(text)}
    assert len(keys) > 400
    settings = {key for key in keys if key in known_settings(BrokerSettings)}
    assert 0 < len(loaded.warnings) < len(keys - settings - REFUSED_KEYS.keys()) // 5
    assert all(" has no effect: " in warning for warning in loaded.warnings)
    assert loaded.settings.name == "broker-a"
    assert loaded.settings.store.commit_log_file_bytes == 65536


OF_THE_MACHINE = {
    "clientCallbackExecutorThreads", "endTransactionThreadPoolNums", "heartbeatThreadPoolNums",
    "litePullMessageThreadPoolNums", "processReplyMessageThreadPoolNums", "pullMessageThreadPoolNums",
    "putMessageFutureThreadPoolNums", "queryMessageThreadPoolNums", "rocketmqHome",
    "sendMessageThreadPoolNums",
}  # fmt: skip
"""Keys whose defaults depend on the machine."""


def test_the_whole_configuration_of_5_5_is_taken(tmp_path: Path) -> None:
    """As a broker without settings of its own prints it: what is at its default is not worth a word."""
    text = (GOLDEN / "settings" / "broker-5.5.0.properties").read_text()
    assert len(list(read_properties(text))) == 487
    loaded = load(file=write(tmp_path, "b.conf", text))
    told = {warning.partition(" ")[0] for warning in loaded.warnings}
    assert told == {*OF_THE_MACHINE, "cleanFileForciblyEnable"}, "the last was set for the recording"
    changed = re.sub("(?m)^(liteLag.*|timerRocksDBP.*|maxRocksDB.*)=[0-9]+$", r"\1=8", text)
    told = {warning.partition(" ")[0] for warning in load(file=write(tmp_path, "c.conf", changed)).warnings}
    assert {"liteLagLatencyTopK", "timerRocksDBPrecisionMs", "maxRocksDBIndexQueryDays"} < told


@pytest.mark.parametrize("key", ["timerRocksDBEnable", "transRocksDBEnable", "indexRocksDBEnable"])
def test_rocksdb_is_refused(key: str) -> None:
    assert load(flags={key: "false"}).warnings == ()
    with pytest.raises(SettingsError, match="RocksDB is not supported"):
        load(flags={key: "true"})


def test_a_key_that_is_only_a_little_like_another_gets_no_suggestion() -> None:
    """As new keys of RocketMQ had: the suggestion was another feature."""
    with pytest.raises(SettingsError) as caught:
        load(flags={"litePriorityTopicMax": "1"})
    assert caught.value.reason == "unknown setting (command line)"


def test_a_name_servers_whole_configuration_is_taken(tmp_path: Path) -> None:
    file = write(tmp_path, "n.conf", golden_properties("admin-getNamesrvConfig", 319))
    loaded = load_settings(NameServerSettings, file=file)
    assert loaded.settings.port == 19876
    assert all(" has no effect: " in warning for warning in loaded.warnings)


def test_the_defaults_are_rocketmqs_where_it_has_them() -> None:
    """Apart from what the recording's own configuration set, and what differs on purpose."""
    differs = (
        "bindAddress brokerIP1 brokerIP2 haListenPort listenPort namesrvAddr storePathRootDir "
        "storePathCommitLog mappedFileSizeCommitLog mappedFileSizeConsumeQueue maxHashSlotNum maxIndexNum "
        "traceTopicEnable haTransferBatchSize inSyncReplicas transactionCheckInterval "
        "transactionCheckMax transactionTimeOut mappedFileSizeTimerLog enablePopBufferMerge reviveInterval "
        "allAckInSyncStateSet brokerHeartbeatInterval controllerHeartBeatTimeoutMills "
        "syncBrokerMetadataPeriod sendHeartbeatTimeoutMillis"
    ).split()
    apache = {item.key: item.value for item in read_properties(golden_properties("probe-admin", 26))}
    for item in all_settings(BrokerSettings):
        if item.java in apache and item.java not in differs:
            assert item.format(BrokerSettings()) == apache[item.java], item.java


def test_a_key_without_effect_is_one_warning_with_the_reason() -> None:
    loaded = load(flags={"filterServerNums": "1"})
    assert loaded.settings == BrokerSettings()
    assert loaded.warnings == (
        "filterServerNums has no effect: filter servers are not supported (command line)",
    )


def test_a_file_as_people_have_it_is_taken_with_keys_that_rocketmq_passes_over(tmp_path: Path) -> None:
    keys = "storePathConsumeQueue storePathIndex storeCheckpoint abortFile mapedFileSizeCommitLog".split()
    lines = ["storePathRootDir=/data/store", *(f"{key}=/data/store" for key in keys)]
    loaded = load(file=write(tmp_path, "broker.conf", "\n".join(lines)))
    assert loaded.settings == BrokerSettings(store=StoreSettings(path=Path("/data/store")))
    assert [warning.split()[0] for warning in loaded.warnings] == keys


@pytest.mark.parametrize("key", sorted(REFUSED_KEYS))
def test_keys_that_must_not_be_ignored_are_refused(key: str) -> None:
    for harmless in REFUSED_KEYS[key][0]:
        assert load(flags={key: harmless.upper()}).warnings == ()
    with pytest.raises(SettingsError) as caught:
        load(flags={key: "SLAVE"})
    assert caught.value.reason == f"'SLAVE' is not supported: {REFUSED_KEYS[key][1]} (command line)"


def test_no_key_is_told_in_two_ways() -> None:
    ours = {item.java for item in all_settings(BrokerSettings)}
    assert ours & UNUSED_KEYS.keys() == {"configBlackList"}  # a setting of brokers, not of name servers
    assert not (ours | UNUSED_KEYS.keys()) & REFUSED_KEYS.keys()
    assert not {item.java for item in all_settings(NameServerSettings)} & UNUSED_KEYS.keys()


# --- Java's properties ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b", 1)]),
        ("  a  =  b  ", [("a", "b", 1)]),
        ("a:b\r\nc d\re", [("a", "b", 1), ("c", "d", 2), ("e", "", 3)]),
        ("# no\n! no\n\n \t\na=#yes", [("a", "#yes", 5)]),
        ("a=b\\\n   c\\\n\n d=e", [("a", "bc", 1), ("d", "e", 4)]),
        ("a=b\\\\\nc=d", [("a", "b\\", 1), ("c", "d", 2)]),
        (r"a\ b\=c=d\te\n\u4e2d\q", [("a b=c", "d\te\n中q", 1)]),
        ("a=b=c:d e", [("a", "b=c:d e", 1)]),
        ("a=b\\", [("a", "b", 1)]),
        ("", []),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert [tuple(item) for item in read_properties(text)] == expected


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), st.text()))
def test_properties_are_read_as_they_were_written(values: dict[str, str]) -> None:
    read = {item.key: item.value for item in read_properties(write_properties(values))}
    assert read == {key: value.strip() for key, value in values.items()}


# --- Printing ---


def test_the_printed_configuration_is_a_file_with_the_same_settings(tmp_path: Path) -> None:
    settings = BrokerSettings(
        name="b", port=1234, trace_on=False, store=StoreSettings(path=Path("a b"), flush_mode=FlushMode.SYNC)
    )
    text = to_properties(settings)
    assert "listenPort=1234\n" in text
    assert "flushDiskType=SYNC_FLUSH\n" in text
    assert "traceOn=false\n" in text
    assert text.splitlines() == sorted(text.splitlines())
    loaded = load(file=write(tmp_path, "b.conf", text))
    assert loaded.settings == settings
    assert loaded.warnings == ()


# --- Changes at run time ---


def test_live_settings_can_change_and_others_cannot() -> None:
    update = plan_update(
        BrokerSettings(),
        {"autoCreateTopicEnable": "false", "pull_wait_ms": "50", "listenPort": "1", "noSuchSetting": "x"},
    )
    assert update.settings == replace(BrokerSettings(), auto_create_topics=False, pull_wait_ms=50)
    assert update.changed == ("autoCreateTopicEnable", "pull_wait_ms")
    assert update.fixed == ("listenPort",)
    assert update.unknown == ("noSuchSetting",)


def test_a_bad_change_is_refused() -> None:
    with pytest.raises(SettingsError, match="use 0 to 7"):
        plan_update(BrokerSettings(), {"brokerPermission": "9"})


def test_the_holder_is_replaced_whole() -> None:
    holder = LiveSettings(BrokerSettings())
    before = holder.current
    holder.current = plan_update(before, {"traceOn": "false", "brokerPermission": "4"}).settings
    assert (before.permission, holder.current.permission) == (6, 4)


# --- Documentation ---


def test_the_examples_are_loaded_without_a_word_and_mean_the_same() -> None:
    toml, properties = load(file=DOCS / "broker.toml"), load(file=DOCS / "broker.properties")
    assert toml.warnings == properties.warnings == ()
    assert toml.settings == properties.settings
    assert toml.settings.store.flush_mode is FlushMode.SYNC


def test_the_reference_names_every_setting_as_it_is() -> None:
    """After a change of the settings, put the row that is missing into the reference."""
    text = (DOCS / "broker-settings.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \| [^|]+ \|$", text, re.MULTILINE))
    expected = {}
    for item in all_settings(BrokerSettings):
        default = item.format(BrokerSettings())
        live = "yes" if item.is_live else "no"
        shown = f"`{default}`" if default else "empty"
        expected[item.name] = f"`{item.java}` | {shown} | {item.allowed} | {live}"
    assert json.dumps(rows, indent=1, sort_keys=True) == json.dumps(expected, indent=1, sort_keys=True)
