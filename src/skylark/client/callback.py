"""Pure. Functions that the application passes to a client: checked when they are given, not at each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from skylark.errors import SettingsError


def check_callback(setting: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raises SettingsError unless the function can be called with these arguments.

    A generator function is refused, too: calling it runs nothing.
    """
    if not callable(function):
        raise SettingsError(setting, f"must be a function, not {function!r:.80}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SettingsError(setting, f"{name_of(function)} contains yield, so calling it would run nothing")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some builtins have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise SettingsError(
            setting,
            f"{name_of(function)}{_bare(signature)} cannot be called with ({', '.join(arguments)}): {error}",
        ) from None


def _bare(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature without annotations."""
    empty = inspect.Parameter.empty
    parameters = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return inspect.Signature(parameters)


def name_of(function: Callable[..., Any]) -> str:
    """Return the qualified name of a function, or of the class of another callable object."""
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name
