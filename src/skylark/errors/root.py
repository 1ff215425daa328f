"""The root of all errors, and those that no part has for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class RocketMQError(Exception):
    """Root of all errors raised on purpose."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    text: ClassVar[str] = ""  # the sentence, with the facts' names in braces

    def __str__(self) -> str:
        return self.text.format_map(vars(self)) if self.text else super().__str__()

    def __post_init__(self) -> None:
        # Called by the dataclasses below, when the instance holds its fields and nothing else:
        # with the facts as `args` an error survives pickling, as it must between processes.
        self.args = tuple(vars(self).values())


@dataclass(eq=False)
class SettingsError(RocketMQError):
    """A setting with a value that cannot be used, or a name nobody knows."""

    text = "setting {name}: {reason}"
    name: str
    reason: str


@dataclass(eq=False)
class BadSettingsFile(SettingsError):
    """A file of settings, or a place in it, that cannot be used. `name` is the path, perhaps with a line."""

    text = "{name}: {reason}"


@dataclass(eq=False)
class BadJson(RocketMQError, ValueError):
    """Text that not even Java's tolerant JSON reader would take. `position` counts characters from 0."""

    text = "bad JSON at character {position}: {reason}"
    position: int
    reason: str


@dataclass(eq=False)
class BadBody(RocketMQError, ValueError):
    """A message body that cannot be decompressed: damaged, too large, or by a codec that is not installed."""

    text = "body compressed with {compression} cannot be read: {reason}"
    compression: str
    reason: str
