"""The reference of response codes and errors, from the code: `python -m skylark.cli.error_reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from skylark import errors
from skylark.cli.errors import hint_of_kind
from skylark.errors import BrokerError, RocketMQError
from skylark.protocol.codes import ResponseCode

HEAD = """# Response codes and errors

This page is written by `python -m skylark.cli.error_reference`.

A server answers a request with a code and, if something is wrong, a remark that says what. In Python a code
that means failure is raised as `BrokerError` or the class in the table, with `code` and `remark`; what is
everyday (nothing found, an offset that moved) is a value instead. "Again": a producer tries another broker.

"""
MEANINGS = {
    ResponseCode.SUCCESS: "Done.",
    ResponseCode.SYSTEM_ERROR: "It cannot be done; the remark says why. Also all that has no better code.",
    ResponseCode.SYSTEM_BUSY: "Too much at once: a queue is full, or the disk does not keep up. Try later.",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The server does not know this request, or does not offer it.",
    ResponseCode.FLUSH_DISK_TIMEOUT: "Stored, but not known to be on disk in time. A status of the receipt.",
    ResponseCode.SLAVE_NOT_AVAILABLE: "Stored, but there is no slave to have it. A status of the receipt.",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "Stored, but no slave had it in time. A status of the receipt.",
    ResponseCode.MESSAGE_ILLEGAL: "The message breaks a limit or a rule of form.",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The store cannot write: the disk is full or failed; a slave.",
    ResponseCode.NO_PERMISSION: "The permission of the broker, topic or group does not allow it.",
    ResponseCode.TOPIC_NOT_EXIST: "Nobody has this topic.",
    ResponseCode.PULL_NOT_FOUND: "No new message.",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "Messages were there, but none that the filter lets through.",
    ResponseCode.PULL_OFFSET_MOVED: "The offset is outside the queue; the answer names one that is not.",
    ResponseCode.QUERY_NOT_FOUND: "No such message, offset or entry.",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "The tags or the SQL92 condition cannot be read.",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "The group has not told this broker what it subscribes to.",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "The broker has not seen the newest subscription yet.",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "Nobody made this group, and it may not be made by asking.",
    ResponseCode.FILTER_DATA_NOT_EXIST: "The broker does not know the group's filter.",
    ResponseCode.INVALID_PARAMETER: "A field of the request has a value that cannot be.",
    ResponseCode.CONSUMER_NOT_ONLINE: "Nobody of the group is connected.",
    ResponseCode.CONSUME_MSG_TIMEOUT: "The consumer that was asked did not answer in time.",
    ResponseCode.ILLEGAL_OPERATION: "The request is not possible here, for example on a slave.",
    ResponseCode.GO_AWAY: "The server is about to stop.",
}
"""Of the codes that our servers answer."""


def markdown() -> str:
    """The whole page."""
    return "".join((HEAD, *_codes(), *_errors()))


def _codes() -> Iterator[str]:
    yield "## Response codes\n\n| Code | Name | Meaning | Raised as | Again |\n|---|---|---|---|---|\n"
    for code in sorted(MEANINGS):
        kind = type(BrokerError.for_code(code))
        raised = "" if kind is BrokerError else f"`{kind.__name__}`"
        again = "yes" if kind.retriable else ""
        yield f"| {code.value} | `{code.name}` | {MEANINGS[code]} | {raised} | {again} |\n"
    others = ", ".join(f"{code.value} `{code.name}`" for code in sorted(set(ResponseCode) - MEANINGS.keys()))
    yield f"\nRocketMQ's other codes, which Skylark's servers do not answer: {others}.\n\n"


def _errors() -> Iterator[str]:
    yield "## Errors in Python\n\nAll are `RocketMQError`; each carries its facts as attributes.\n\n"
    yield "| Error | A kind of | Meaning | What to do |\n|---|---|---|---|\n"
    for kind in error_kinds():
        [base, *_] = [each.__name__ for each in kind.__bases__ if issubclass(each, RocketMQError)]
        meaning, advice = (text.replace("|", "\\|") for text in (_meaning(kind), hint_of_kind(kind) or ""))
        yield f"| `{kind.__name__}` | `{base}` | {meaning} | {advice} |\n"


def error_kinds(root: type[RocketMQError] = RocketMQError) -> Iterator[type[RocketMQError]]:
    """All errors of the tree below a root, each before those below it."""
    for kind in root.__subclasses__():
        if kind.__module__.startswith(errors.__name__):
            yield kind
            yield from error_kinds(kind)


def _meaning(kind: type[RocketMQError]) -> str:
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.stdout.write(markdown())
