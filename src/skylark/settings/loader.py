"""Loads settings: defaults, then a file, then the environment, then flags; later sources win.

A setting has two spellings, ours (`port`, `store.flush_mode`) and RocketMQ's (`listenPort`, `flushDiskType`).
Files are TOML by the suffix `.toml`, else Java's `.properties`.
"""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from skylark.errors import BadSettingsFile, SettingsError
from skylark.settings.fields import allowed_range, check_range
from skylark.settings.properties import read_properties, write_properties
from skylark.settings.rocketmq_defaults import DEFAULTS
from skylark.settings.rocketmq_keys import REFUSED_KEYS, UNUSED_KEYS

S = TypeVar("S")
COMMAND_LINE = "command line"
"""The origin of settings that flags give."""
HIDDEN = "***"
LIKENESS = 0.75
"""Similarity of a key to the one that is suggested instead; a lower one misleads."""
_BOOLEANS = {"true": True, "false": False}
# RocketMQ's environment variables and their keys. As in RocketMQ, a file overrides them.
_JAVA_VARIABLES = {"NAMESRV_ADDR": "namesrvAddr"}


@dataclass(frozen=True)
class KnownSetting:
    """One setting: its path in the nested settings and its type."""

    path: tuple[str, ...]
    spec: Field[Any] = field(compare=False)
    type: Any = field(compare=False)
    optional: bool = field(compare=False)

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def java(self) -> str:
        return str(self.spec.metadata["java"])

    @property
    def is_live(self) -> bool:
        return bool(self.spec.metadata["live"])

    @property
    def allowed(self) -> str:
        """The valid values, in words."""
        if self.type is bool:
            return "true or false"
        if issubclass(self.type, Enum):
            return " or ".join(member.value for member in self.type)
        if self.type is int:
            return allowed_range(self.spec) or "any whole number"
        return "a path" if self.type is Path else "any text"

    def get(self, settings: Any) -> Any:
        for name in self.path:
            settings = getattr(settings, name)
        return settings

    def parse(self, key: str, given: Any) -> Any:
        """Convert a text or a TOML value. Raises SettingsError under `key`."""
        if isinstance(given, str):
            if not given and self.optional:
                return None
            value = self._parse_text(given)
        else:
            fits = isinstance(given, self.type) and (self.type is bool or not isinstance(given, bool))
            value = given if fits else None
        if value is None:
            raise SettingsError(key, f"invalid value {given!r}; use {self.allowed}")
        check_range(self.spec, value, key)
        return value

    def _parse_text(self, text: str) -> Any:
        if self.type is bool:
            return _BOOLEANS.get(text.lower())
        if self.type is int:
            digits = text.removeprefix("-")
            return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None
        if issubclass(self.type, Enum):
            spellings = {
                word: member for member in self.type for word in (member.name.lower(), member.value.lower())
            }
            return spellings.get(text.lower())
        return self.type(text) if text or self.type is str else None

    def shown(self, settings: Any) -> str:
        """Return the value as text for people: a secret is hidden."""
        text = self.format(settings)
        return HIDDEN if text and self.spec.metadata["secret"] else text

    def format(self, settings: Any) -> str:
        """Return the value as text that `parse` accepts."""
        value = self.get(settings)
        if value is None:
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        return str(value.value if isinstance(value, Enum) else value)


_walked: dict[type[Any], Sequence[KnownSetting]] = {}


@dataclass(frozen=True)
class LoadedSettings(Generic[S]):
    """Settings, the origins of values that are not defaults, and warnings for the user."""

    settings: S
    origins: Mapping[str, str]
    """By our name: `broker.conf line 3`, `environment`, `command line`."""
    warnings: tuple[str, ...]


def load_settings(
    settings_type: type[S],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    prefix: str = "",
    flags: Mapping[str, Any] | None = None,
    shared_with: type[Any] | None = None,
) -> LoadedSettings[S]:
    """Return the settings of a server. The file may also hold those of another one, `shared_with`.

    Only environment variables that start with `prefix` are read, such as `SKYLARK_BROKER_STORE_FLUSH_MODE`.
    Raises SettingsError for an unknown key, an invalid value, or an unreadable file.
    """
    known = known_settings(settings_type)
    others = {} if shared_with is None else known_settings(shared_with)
    environment = environment or {}
    given = [
        *(
            _Given(key, environment[name], name, 0)
            for name, key in _JAVA_VARIABLES.items()
            if name in environment and key in known
        ),
        *(item for item in _from_file(file) if item.key in known or item.key not in others),
        *_from_environment(settings_type, environment, prefix),
        *(_Given(key, value, COMMAND_LINE, 3) for key, value in (flags or {}).items()),
    ]
    values: dict[KnownSetting, Any] = {}
    chosen: dict[KnownSetting, _Given] = {}
    warnings: list[str] = []
    for item in given:
        setting = known.get(item.key)
        if setting is None:
            warnings += _remarks(item, known)
            continue
        before = chosen.get(setting)
        if before is not None and before.rank == item.rank:
            warnings.append(f"{item.key} is set twice: {item.origin} overrides {before.origin}")
        try:
            values[setting] = setting.parse(item.key, item.value)
        except SettingsError as error:
            raise SettingsError(error.name, f"{error.reason} ({item.origin})") from None
        chosen[setting] = item
    return LoadedSettings(
        settings=replaced(settings_type(), values),
        origins={setting.name: item.origin for setting, item in chosen.items()},
        warnings=tuple(warnings),
    )


def known_settings(settings_type: type[Any]) -> Mapping[str, KnownSetting]:
    """Return all settings of a type by both of their spellings."""
    table: dict[str, KnownSetting] = {}
    for setting in all_settings(settings_type):
        for key in {setting.name, setting.java}:
            assert key not in table, f"two settings are called {key}"
            table[key] = setting
    return types.MappingProxyType(table)


def all_settings(settings_type: type[Any]) -> Sequence[KnownSetting]:
    """Return all settings of a type, in the order they are declared."""
    if settings_type not in _walked:
        _walked[settings_type] = tuple(_walk(settings_type, ()))
    return _walked[settings_type]


def replaced(settings: S, values: Mapping[KnownSetting, Any]) -> S:
    """Return the settings with some values replaced. Raises SettingsError if they conflict."""
    changed: S = _replaced(settings, {setting.path: value for setting, value in values.items()})
    return changed


def given_in(file: Path) -> dict[str, Any]:
    """Return the values of a file by its own keys: texts or TOML values. Raises SettingsError."""
    return {item.key: item.value for item in _from_file(file)}


def to_properties(settings: Any) -> str:
    """Return all settings as `.properties` text under RocketMQ's keys. Loading it restores them."""
    return write_properties({item.java: item.format(settings) for item in all_settings(type(settings))})


def shown_properties(settings: Any) -> str:
    """As `to_properties`, with secrets hidden."""
    return write_properties({item.java: item.shown(settings) for item in all_settings(type(settings))})


@dataclass(frozen=True)
class _Given:
    """A key with its text or TOML value. A higher rank overrides a lower one."""

    key: str
    value: Any
    origin: str
    rank: int


def _walk(settings_type: type[Any], path: tuple[str, ...]) -> Iterator[KnownSetting]:
    hints = typing.get_type_hints(settings_type)
    for spec in fields(settings_type):
        hint = hints[spec.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from _walk(hint, (*path, spec.name))
            continue
        kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not types.NoneType]
        yield KnownSetting(
            (*path, spec.name), spec, kinds[0], optional=types.NoneType in typing.get_args(hint)
        )


def _replaced(settings: Any, changes: Mapping[tuple[str, ...], Any]) -> Any:
    here = {path[0]: value for path, value in changes.items() if len(path) == 1}
    for group in {path[0] for path in changes if len(path) > 1}:
        inner = {path[1:]: value for path, value in changes.items() if path[0] == group and len(path) > 1}
        here[group] = _replaced(getattr(settings, group), inner)
    return replace(settings, **here) if here else settings


def _from_file(file: Path | None) -> Iterator[_Given]:
    if file is None:
        return
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadSettingsFile(str(file), f"cannot read the file: {reason}") from error
    if file.suffix != ".toml":
        for key, value, line in read_properties(text):
            yield _Given(key, value, f"{file.name} line {line}", 1)
        return
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSettingsFile(str(file), f"invalid TOML: {error}") from error
    for key, value in _flat(tables, ""):
        yield _Given(key, value, file.name, 1)


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environment(
    settings_type: type[Any], environment: Mapping[str, str], prefix: str
) -> Iterator[_Given]:
    names = {item.name.replace(".", "_").upper(): item.name for item in all_settings(settings_type)}
    for variable, value in environment.items():
        if prefix and variable.startswith(prefix):
            name = variable.removeprefix(prefix)
            if name not in names:
                near = _nearest(name, names)
                raise SettingsError(variable, f"unknown setting{near and f'; did you mean {prefix}{near}?'}")
            yield _Given(names[name], value, f"environment {variable}", 2)


def _remarks(item: _Given, known: Mapping[str, KnownSetting]) -> list[str]:
    """Return a warning for a RocketMQ key that is not supported, none for its default.

    Raises SettingsError for unknown keys.
    """
    if item.key in REFUSED_KEYS:
        harmless, reason = REFUSED_KEYS[item.key]
        if str(item.value).strip().lower() not in harmless:
            raise SettingsError(item.key, f"{item.value!r} is not supported: {reason} ({item.origin})")
        return []
    if item.key in UNUSED_KEYS:
        if str(item.value).strip() in DEFAULTS.get(item.key, ()):
            return []
        return [f"{item.key} has no effect: {UNUSED_KEYS[item.key]} ({item.origin})"]
    near = _nearest(item.key, [*known, *UNUSED_KEYS])
    raise SettingsError(item.key, f"unknown setting{near and f'; did you mean {near}?'} ({item.origin})")


def _nearest(key: str, names: typing.Iterable[str]) -> str:
    by_letters = {name.lower(): name for name in names}
    found = difflib.get_close_matches(key.lower(), by_letters, n=1, cutoff=LIKENESS)
    return by_letters[found[0]] if found else ""
