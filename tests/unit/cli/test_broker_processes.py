"""What each of several brokers is told: one setting for all must not let two of them meet."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from skylark.cli.broker_processes import OWN_SETTINGS, STORE_MARK, broker_commands, check_layout
from skylark.cli.errors import UsageError
from skylark.settings import BrokerSettings, StoreSettings
from skylark.settings.loader import known_settings, load_settings


def settings_of(command: list[str]) -> BrokerSettings:
    """With what a broker of this command starts."""
    flags = dict(word.split("=", 1) for option, word in pairwise(command) if option == "--set")
    return load_settings(BrokerSettings, flags=flags).settings


def test_ports_and_directories_are_reckoned_for_each() -> None:
    store = StoreSettings(path=Path("store"), commit_log_path=Path("log"))
    settings = BrokerSettings(name="mine", port=20911, replica_port=20912, metrics_port=7000, store=store)
    commands = broker_commands(3, settings, "127.0.0.1:9876", ["--flush", "sync"])
    assert list(commands) == ["broker-a", "broker-b", "broker-c"]
    for number, (name, command) in enumerate(commands.items()):
        own = settings_of(command)
        assert own.name == name
        assert own.name_servers == "127.0.0.1:9876"
        assert (own.port, own.replica_port) == (20911 + 10 * number, 20912 + 10 * number)
        assert own.metrics_port == 7000 + number
        assert (own.store.path, own.store.commit_log_path) == (Path("store") / name, Path("log") / name)
        assert "--flush" in command


def test_what_is_not_set_stays_so_and_0_is_any_port() -> None:
    settings = BrokerSettings(port=0, metrics_port=0)
    for command in broker_commands(2, settings, "127.0.0.1:9876", ()).values():
        own = settings_of(command)
        assert (own.port, own.metrics_port, own.replica_port, own.store.commit_log_path) == (0, 0, None, None)


def test_what_each_has_for_itself_are_settings() -> None:
    assert known_settings(BrokerSettings).keys() >= OWN_SETTINGS


def make_store(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / STORE_MARK).touch()


@pytest.mark.parametrize(
    ("stores", "count", "sentence"),
    [
        ([], 1, None),
        ([], 4, None),
        (["."], 1, None),
        (
            ["."],
            4,
            r"holds the store of one broker, which --brokers 4 would not use; move it to \S+broker-a",
        ),
        (["broker-a", "broker-b"], 2, None),
        (["broker-a", "broker-b"], 1, "holds the stores of broker-a, broker-b; pass --brokers 2"),
        ([".", "broker-a"], 1, None),
        ([".", "broker-a"], 2, None),
    ],
)
def test_no_store_is_left_aside_without_a_word(
    tmp_path: Path, stores: list[str], count: int, sentence: str | None
) -> None:
    for name in stores:
        make_store(tmp_path / name)
    if sentence is None:
        check_layout(tmp_path, count)
    else:
        with pytest.raises(UsageError, match=sentence):
            check_layout(tmp_path, count)
