"""One struct per request code, by family. `REQUESTS` finds them by code."""

from types import ModuleType
from typing import Any

from skylark.protocol.codes import RequestCode
from skylark.protocol.request import Request
from skylark.protocol.requests import (
    admin,
    client,
    controller,
    group,
    lite,
    name_server,
    offset,
    pop,
    pull,
    send,
    topic,
    transaction,
)


def _requests(family: ModuleType) -> dict[RequestCode, type[Request[Any]]]:
    return {
        value.code: value
        for value in vars(family).values()
        if isinstance(value, type) and issubclass(value, Request) and hasattr(value, "code")
    }


REQUESTS: dict[RequestCode, type[Request[Any]]] = {
    code: request
    for family in (
        send,
        pull,
        pop,
        lite,
        offset,
        client,
        name_server,
        topic,
        group,
        transaction,
        admin,
        controller,
    )
    for code, request in _requests(family).items()
}
