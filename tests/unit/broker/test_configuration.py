"""Settings at run time: shown under RocketMQ's keys, changed all or none, kept in their file."""

from pathlib import Path

import pytest

from skylark.broker.configuration import BrokerConfiguration, changed_file
from skylark.errors import BrokerError
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.settings.loader import load_settings
from tests.unit.broker.tables import NOW_MS, live, refusal


def configuration(holder: LiveSettings[BrokerSettings]) -> BrokerConfiguration:
    return BrokerConfiguration(holder, now_ms=NOW_MS)


def lines(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_all_settings_are_shown_sorted_and_what_is_of_this_run_wins() -> None:
    text = configuration(live(port=0)).text({"listenPort": "10911"})
    assert text.splitlines() == sorted(text.splitlines())
    shown = lines(text)
    assert shown["listenPort"] == "10911"
    assert shown["flushDiskType"] == "ASYNC_FLUSH"
    assert shown["messageDelayLevel"].startswith("1s 5s 10s")
    assert (shown["brokerId"], shown["brokerRole"], shown["aclEnable"]) == ("0", "ASYNC_MASTER", "false")


def test_a_change_is_in_force_and_told() -> None:
    holder, told = live(), []
    config = configuration(holder)
    config.on_change = lambda: told.append(holder.current.permission)
    assert config.update("brokerPermission=4\nflushIntervalCommitLog=400\n", now_ms=NOW_MS + 1) == (
        "brokerPermission",
        "flushIntervalCommitLog",
    )
    assert (holder.current.permission, holder.current.store.flush_interval_ms) == (4, 400)
    assert told == [4]
    assert (config.version.counter, config.version.timestamp) == (1, NOW_MS + 1)
    assert lines(config.text({}))["brokerPermission"] == "4"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("rocketmqHome=x", 16, "Can not update config in black list."),
        ("configBlackList=", 16, "Can not update config in black list."),
        ("brokerConfigPath=x", 16, "Can not update config in black list."),
        ("config_path=x", 16, "Can not update config in black list."),
        ("listenPort=1234", 16, "cannot be changed while the broker runs: listenPort"),
        ("brokerPermission=8", 29, "use 0 to 7"),
        ("brokerPermission=x", 29, "invalid value 'x'"),
        ("aclEnable=true", 16, "aclEnable cannot be true: RocketMQ 5.3.3 ignores it and serves everybody"),
        ("timerRocksDBEnable=true", 16, "timerRocksDBEnable cannot be true: timers are in files"),
        ("brokerRole=SLAVE", 16, "cannot be changed while the broker runs: brokerRole"),
        ("deleteWhen=99", 29, "use 0 to 23"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(text: str, code: int, words: str) -> None:
    holder = live()
    config, before = configuration(holder), holder.current
    with pytest.raises(BrokerError) as caught:
        config.update(f"autoCreateTopicEnable=false\n{text}\n", now_ms=NOW_MS)
    assert refusal(caught.value)[0] == code
    assert words in refusal(caught.value)[1]
    assert holder.current is before
    assert config.version.counter == 0


def test_the_black_list_is_a_setting() -> None:
    config = configuration(live(config_black_list="brokerPermission;x"))
    with pytest.raises(BrokerError, match="black list"):
        config.update("brokerPermission=4", now_ms=NOW_MS)


def test_keys_that_are_not_ours_are_ignored_as_rocketmq_does(caplog: pytest.LogCaptureFixture) -> None:
    holder = live()
    text = "noSuchSetting=x\nsendMessageThreadPoolNums=9\nbrokerRole=ASYNC_MASTER\nlistenPort=10911\n"
    assert configuration(holder).update(text, now_ms=NOW_MS) == ()
    assert holder.current == BrokerSettings()
    assert "key=noSuchSetting reason=unknown key" in caplog.text
    assert "key=sendMessageThreadPoolNums reason=one event loop serves all requests" in caplog.text


# --- The file ---


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broker.conf", "# mine\nbrokerName=b\npermission=6\nsendMessageThreadPoolNums=3\n"),
        ("broker.toml", '# mine\nname = "b"\nbrokerPermission = 6\n[store]\nflush_mode = "sync"\n'),
    ],
)
def test_the_file_keeps_what_was_changed_and_what_it_said(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    holder = LiveSettings(load_settings(BrokerSettings, file=path).settings)
    config = configuration(holder)
    config.update("brokerPermission=4\nautoCreateTopicEnable=false\n", now_ms=NOW_MS)
    config.update("autoCreateTopicEnable=true\nfileReservedTime=9\n", now_ms=NOW_MS)
    path.write_bytes(config.snapshot(path)())
    assert load_settings(BrokerSettings, file=path).settings == holder.current
    assert path.read_text().count("ermission") == 1, "one spelling of a key, not two"


def test_the_file_is_made_if_it_is_not_there(tmp_path: Path) -> None:
    assert changed_file(tmp_path / "new.conf", {"brokerPermission": "4"}) == b"brokerPermission=4\n"


def test_a_file_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("not toml")
    with pytest.raises(OSError, match="cannot be changed"):
        changed_file(path, {"brokerPermission": "4"})
