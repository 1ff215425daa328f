"""Settings that change while a server runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from skylark.settings.loader import known_settings, replaced

S = TypeVar("S")


class LiveSettings(Generic[S]):
    """The settings in force, replaced as a whole by the loop. Readers access `current` at each use."""

    __slots__ = ("current",)

    def __init__(self, settings: S) -> None:
        self.current = settings


@dataclass(frozen=True)
class SettingsUpdate(Generic[S]):
    """Outcome of a requested change. Keys are as given."""

    settings: S
    changed: tuple[str, ...]
    fixed: tuple[str, ...]
    """Known settings that need a restart."""
    unknown: tuple[str, ...]


def plan_update(settings: S, changes: Mapping[str, str]) -> SettingsUpdate[S]:
    """Return the settings after the changes. Raises SettingsError for an invalid value."""
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
