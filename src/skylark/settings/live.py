"""Settings that may change while a server runs: one holder, whose value is replaced whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from skylark.settings.loader import known_settings, replaced

S = TypeVar("S")


class LiveSettings(Generic[S]):
    """Holds the settings in force. Owned by the loop; whoever needs one reads it at use."""

    __slots__ = ("current",)

    def __init__(self, settings: S) -> None:
        self.current = settings


@dataclass(frozen=True)
class SettingsUpdate(Generic[S]):
    """What a change asked for at run time comes to. Keys are as they were given."""

    settings: S
    changed: tuple[str, ...]
    fixed: tuple[str, ...]
    """Settings of ours that only a restart can change."""
    unknown: tuple[str, ...]


def plan_update(settings: S, changes: Mapping[str, str]) -> SettingsUpdate[S]:
    """Return what would be in force after the changes. Raises SettingsError for a bad value."""
    known = known_settings(type(settings))
    found = {key: known[key] for key in changes if key in known}
    live = {key: item for key, item in found.items() if item.is_live}
    values = {item: item.parse(key, changes[key]) for key, item in live.items()}
    return SettingsUpdate(
        settings=replaced(settings, values),
        changed=tuple(live),
        fixed=tuple(key for key in found if key not in live),
        unknown=tuple(key for key in changes if key not in known),
    )
