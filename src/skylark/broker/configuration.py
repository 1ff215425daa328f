"""The settings of a broker as administrators read and change them at run time, and the file of changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from skylark.broker.error_replies import invalid_parameter, no_permission
from skylark.broker.metadata_json import Encode, next_version
from skylark.errors import SettingsError
from skylark.protocol.bodies import DataVersion
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings, plan_update
from skylark.settings.loader import all_settings, given_in, known_settings
from skylark.settings.properties import read_properties, write_properties
from skylark.settings.rocketmq_keys import REFUSED_KEYS, UNUSED_KEYS

log = logging.getLogger(__name__)

FORBIDDEN_KEYS = frozenset({"rocketmqHome", "config_black_list", "config_path"})
"""Besides those of the setting `configBlackList`."""

_encode = msgspec.json.Encoder().encode  # what TOML calls a basic string, a boolean and a number are the same


class BrokerConfiguration:
    """Reads and changes the current settings. Loop thread."""

    def __init__(self, live: LiveSettings[BrokerSettings], *, now_ms: int) -> None:
        self._live = live
        self.version = DataVersion(timestamp=now_ms)
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, for the file to be written."""
        self._changes: dict[str, str] = {}

    def text(self, effective: Mapping[str, str]) -> str:
        """All settings under RocketMQ's keys, a line for each, sorted; `effective` ones are of this run."""
        fixed = {key: harmless[0] for key, (harmless, _) in REFUSED_KEYS.items()}
        settings = self._live.current
        ours = {item.java: item.shown(settings) for item in all_settings(type(settings))}
        return write_properties({**fixed, **ours, **effective})

    def update(self, text: str, *, now_ms: int) -> tuple[str, ...]:
        """Make the changes that a `.properties` text asks for, all or none; return the keys that changed.

        Keys that are not ours are ignored, as RocketMQ does. Raises BrokerError 16 for settings that cannot
        change while the broker runs, 29 for values that cannot be used.
        """
        try:
            changes = {key: value for key, value, _ in read_properties(text)}
            self._refuse_forbidden(changes)
            update = plan_update(self._live.current, changes)
        except SettingsError as error:
            raise invalid_parameter(str(error)) from None
        known, current = known_settings(BrokerSettings), self._live.current
        fixed = [key for key in update.fixed if known[key].format(current) != changes[key]]
        if fixed:
            raise no_permission(f"cannot be changed while the broker runs: {', '.join(fixed)}")
        for key in update.unknown:
            log.warning("setting ignored key=%s reason=%s", key, UNUSED_KEYS.get(key, "unknown key"))
        self._live.current = update.settings
        self.version = next_version(self.version, now_ms)
        if update.changed:
            self._changes |= {key: changes[key] for key in update.changed}
            self.on_change()
        return update.changed

    def _refuse_forbidden(self, changes: Mapping[str, str]) -> None:
        black_list = {*self._live.current.config_black_list.split(";"), *FORBIDDEN_KEYS}
        if not black_list.isdisjoint(changes):
            raise no_permission("Can not update config in black list.")
        for key, value in changes.items():
            harmless, reason = REFUSED_KEYS.get(key, ((value.lower(),), ""))
            if value.lower() not in harmless:
                raise no_permission(f"{key} cannot be {value}: {reason}")

    def snapshot(self, path: Path) -> Encode:
        """Return what writes the file as it is, with the changes made since the start."""
        changes = dict(self._changes)
        return lambda: changed_file(path, changes)


def changed_file(path: Path, changes: Mapping[str, str]) -> bytes:
    """The content of a settings file after changes. Waits for the disk. Raises OSError.

    Comments are not kept; the content before is, as `.bak`.
    """
    known = known_settings(BrokerSettings)
    changed = {known[key] for key in changes}
    try:
        given = given_in(path) if path.exists() else {}
    except SettingsError as error:
        raise OSError(f"{path} cannot be changed: {error}") from error
    kept = {key: value for key, value in given.items() if known.get(key) not in changed}
    if path.suffix != ".toml":
        return write_properties({**kept, **changes}).encode()
    lines = [
        b"%b = %b\n" % (_encode(key), _encode(value))
        for key, value in {**kept, **{key: known[key].parse(key, changes[key]) for key in changes}}.items()
    ]
    return b"".join(lines)
