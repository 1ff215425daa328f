"""Pure. Refusals and the status of replies: which code stands for which error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from skylark.errors import (
    BrokerError,
    BrokerUnknown,
    NoRoute,
    NotWritable,
    RequestTimeout,
    RocketMQError,
)
from skylark.protocol.codes import ResponseCode
from skylark.proxy.schema import Code, v2

_BY_RESPONSE_CODE: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


@dataclass(eq=False)
class CallRefused(RocketMQError):
    """A call that is answered with this status."""

    text = "{message}"
    code: Code
    message: str


def status(code: Code, message: str = "") -> Any:
    """Return a `Status`; without a message it has the name of its code."""
    return v2.Status(code=code, message=message or code.name)


OK = status(Code.OK)


def refusal_of(error: Exception) -> CallRefused:
    """Return the status and text of an error for a client."""
    if isinstance(error, CallRefused):
        return error
    if isinstance(error, BrokerError):
        code = _BY_RESPONSE_CODE.get(error.code, Code.INTERNAL_SERVER_ERROR)
        return CallRefused(code, error.remark)
    if isinstance(error, NotWritable):
        return CallRefused(Code.FORBIDDEN, "no writable queue")
    if isinstance(error, NoRoute):
        message = f"No topic route info in name server for the topic: {error.topic}"
        return CallRefused(Code.TOPIC_NOT_FOUND, message)
    if isinstance(error, RequestTimeout):
        return CallRefused(Code.PROXY_TIMEOUT, str(error))
    if isinstance(error, BrokerUnknown):
        return CallRefused(Code.BAD_REQUEST, str(error))
    text = str(error) if isinstance(error, RocketMQError) else f"{type(error).__name__}: {error}"
    return CallRefused(Code.INTERNAL_SERVER_ERROR, text)


def common_status(entries: Iterable[Any]) -> Any:
    """Return the status of a reply with these statuses: their common one, else MULTIPLE_RESULTS."""
    found = list(entries)
    if len({each.code for each in found}) == 1:
        return found[0]
    return status(Code.MULTIPLE_RESULTS)
