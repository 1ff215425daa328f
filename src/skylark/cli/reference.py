"""Reference pages made from the code: `python -m skylark.cli.reference commands|errors|http > FILE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from skylark import errors
from skylark.cli.errors import hint_of_kind
from skylark.cli.main import COMMANDS, app, load_command
from skylark.errors import BrokerError, RocketMQError
from skylark.protocol.codes import ResponseCode

COMMANDS_HEAD = """# Commands

Every command of `skylark`, written by `python -m skylark.cli.reference commands`.
[Coming from mqadmin](../howto/mqadmin.md) maps the commands of `mqadmin` to these.

- On a terminal, output is tables with colours; elsewhere tab-separated lines. `--json` prints JSON.
- Tables fit the terminal: long texts such as bodies are cut (`…`), columns that do not fit follow below
  their row, and times of today have no date. Ids, offsets and addresses are always whole. `--wide` prints
  everything.
- Exit codes: 0 success; 1 a negative result (nothing found, a server that does not answer, a failed check);
  2 an error, described on standard error; 130 after Ctrl-C.
- Times are local time unless a zone is given: `2026-11-15`, `'2026-11-15 10:30'`, `2026-11-15T10:30Z`,
  `2026-11-15T10:30+08:00`; also milliseconds since 1970 and, where the past is meant, `10m`, `2h`, `3d` ago.
- Messages have one JSON shape in all commands: `tail`, `message`, `dlq show`, `store dump`, `store export`.
- `skylark --debug COMMAND` shows tracebacks and all log messages.
- `skylark --install-completion` installs shell completion of commands, topics, groups and brokers.
- Name servers are `--namesrv`, else the variable `NAMESRV_ADDR`, else `127.0.0.1:9876`.
- TLS: `skylark --tls-trusted ca.pem COMMAND`, or variables such as `SKYLARK_TLS_TRUSTED`
  ([Security](../security.md#tls)).
"""
EXAMPLE_WORDS = ("Example:", "Examples:")
HIDDEN_OPTIONS = frozenset({"--help", "--install-completion", "--show-completion"})


def root() -> Any:
    """The `skylark` command with all commands loaded."""
    command = typer.main.get_group(app)
    command.commands = {name: load_command(name) for name in COMMANDS}
    return command


def commands(command: Any, path: tuple[str, ...] = ("skylark",)) -> Iterator[tuple[str, Any]]:
    """All commands below one, groups included, by their full name."""
    for name in sorted(getattr(command, "commands", {})):
        found = command.commands[name]
        yield " ".join((*path, name)), found
        yield from commands(found, (*path, name))


def sentences_and_examples(text: str) -> tuple[str, list[str]]:
    """The help of a command without its examples, and the examples."""
    words: list[str] = []
    examples: list[str] = []
    seen = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith(EXAMPLE_WORDS):
            seen = True
            line = line.partition(":")[2].strip()  # noqa: PLW2901
        (examples if seen else words).append(line)
    return "\n".join(words).strip(), [line for line in examples if line]


def commands_page() -> str:
    parts = [COMMANDS_HEAD]
    for name, command in commands(root()):
        parts.append("\n".join(_section(name, command)))
    return "\n".join(parts)


def _section(name: str, command: Any) -> Iterator[str]:
    is_group = hasattr(command, "commands")
    yield f"{'#' * len(name.split())} {name}\n"
    text, examples = sentences_and_examples(command.help or "")
    yield f"{text}\n"
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    runs = not is_group or command.invoke_without_command
    if runs:
        words = [_argument(param) for param in arguments]
        yield f"```\n{' '.join([name, *words, *(['[OPTIONS]'] if options else [])])}\n```\n"
    if examples:
        yield "\n".join(["```sh", *examples, "```"]) + "\n"
    rows = [
        *(
            (_argument(param), getattr(param, "help", None))
            for param in arguments
            if getattr(param, "help", "")
        ),
        *((_option(param), _option_help(param)) for param in options if _is_shown(param)),
    ]
    if runs and rows:
        yield "| | |\n|---|---|"
        for left, right in rows:
            yield f"| `{_cell(left)}` | {_cell(right or '')} |"
        yield ""


def _argument(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return word if param.required else f"[{word}]"


def _is_shown(param: Any) -> bool:
    return param.opts[0] not in HIDDEN_OPTIONS and not param.hidden


def _option(param: Any) -> str:
    names = ", ".join((*param.opts, *param.secondary_opts))
    if param.is_flag or getattr(param, "count", False):
        return names
    return f"{names} {param.metavar or 'VALUE'}"


def _option_help(param: Any) -> str:
    text = param.help or ""
    default = param.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        text = f"{text} Default: `{default}`.".strip()
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# --- Errors ---


ERRORS_HEAD = """# Response codes and errors

This page is written by `python -m skylark.cli.reference errors`.

A server answers a request with a code and, on failure, a remark with the reason. In Python a code that means
failure is raised as `BrokerError` or the class in the table, with `code` and `remark`; ordinary results
(nothing found, an offset that moved) are values. "Retried": a producer tries another broker.

"""
MEANINGS = {
    ResponseCode.SUCCESS: "Done.",
    ResponseCode.SYSTEM_ERROR: "Failed; the remark has the reason. Also used where no other code fits.",
    ResponseCode.SYSTEM_BUSY: "Overloaded: a queue is full, or the disk is too slow. Try again later.",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The server does not support this request.",
    ResponseCode.FLUSH_DISK_TIMEOUT: "Stored, but not flushed to disk in time. A status of the receipt.",
    ResponseCode.SLAVE_NOT_AVAILABLE: "Stored, but no slave is connected. A status of the receipt.",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "Stored, but not replicated in time. A status of the receipt.",
    ResponseCode.MESSAGE_ILLEGAL: "The message exceeds a limit or is malformed.",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The store cannot write: disk full or failed, or a slave.",
    ResponseCode.NO_PERMISSION: "The permission of the broker, topic or group does not allow it.",
    ResponseCode.TOPIC_NOT_EXIST: "The topic does not exist.",
    ResponseCode.PULL_NOT_FOUND: "No new message.",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "There were messages, but none that matches the filter.",
    ResponseCode.PULL_OFFSET_MOVED: "The offset is outside the queue; the reply has a valid one.",
    ResponseCode.QUERY_NOT_FOUND: "No such message, offset or entry.",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "The tags or the SQL92 condition cannot be parsed.",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "The broker does not know the group's subscription.",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "The broker has not seen the newest subscription yet.",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "The group does not exist, and is not created automatically.",
    ResponseCode.FILTER_DATA_NOT_EXIST: "The broker does not know the group's filter.",
    ResponseCode.INVALID_PARAMETER: "A field of the request is invalid.",
    ResponseCode.CONSUMER_NOT_ONLINE: "No consumer of the group is connected.",
    ResponseCode.CONSUME_MSG_TIMEOUT: "The consumer did not answer in time.",
    ResponseCode.NO_MESSAGE: "There is no message at this offset to acknowledge.",
    ResponseCode.POLLING_FULL: "The broker holds as many pops as it may. Try again later.",
    ResponseCode.POLLING_TIMEOUT: "No message arrived while the pop was held.",
    ResponseCode.ILLEGAL_OPERATION: "The request is not possible here, for example on a slave.",
    ResponseCode.GO_AWAY: "The server is about to stop.",
    ResponseCode.CONTROLLER_NOT_LEADER: "Another controller leads; ask that one.",
    ResponseCode.LMQ_QUOTA_EXCEEDED: "There are as many lite topics as `maxLmqConsumeQueueNum` allows.",
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: (
        "Clients subscribe as many lite topics as `maxLiteSubscriptionCount` allows."
    ),
    ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST: "The controller does not know this broker name.",
}
"""Meanings of the codes that Skylark's servers use."""


def errors_page() -> str:
    return "".join((ERRORS_HEAD, *_codes(), *_errors()))


def _codes() -> Iterator[str]:
    yield "## Response codes\n\n| Code | Name | Meaning | Raised as | Retried |\n|---|---|---|---|---|\n"
    for code in sorted(MEANINGS):
        kind = type(BrokerError.for_code(code))
        raised = "" if kind is BrokerError else f"`{kind.__name__}`"
        again = "yes" if kind.retriable else ""
        yield f"| {code.value} | `{code.name}` | {MEANINGS[code]} | {raised} | {again} |\n"
    others = ", ".join(f"{code.value} `{code.name}`" for code in sorted(set(ResponseCode) - MEANINGS.keys()))
    yield f"\nOther codes of RocketMQ, which Skylark's servers do not use: {others}.\n\n"


def _errors() -> Iterator[str]:
    yield "## Errors in Python\n\nAll are `RocketMQError`; each carries its facts as attributes.\n\n"
    yield "| Error | A kind of | Meaning | What to do |\n|---|---|---|---|\n"
    for kind in error_kinds():
        [base, *_] = [each.__name__ for each in kind.__bases__ if issubclass(each, RocketMQError)]
        meaning, advice = (text.replace("|", "\\|") for text in (_meaning(kind), hint_of_kind(kind) or ""))
        yield f"| `{kind.__name__}` | `{base}` | {meaning} | {advice} |\n"


def error_kinds(root: type[RocketMQError] = RocketMQError) -> Iterator[type[RocketMQError]]:
    """All subclasses, each before its own subclasses."""
    for kind in root.__subclasses__():
        if kind.__module__.startswith(errors.__name__):
            yield kind
            yield from error_kinds(kind)


def _meaning(kind: type[RocketMQError]) -> str:
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


# --- The HTTP API ---


HTTP_HEAD = """# HTTP API

This page is written by `python -m skylark.cli.reference http`, from the OpenAPI document that consoles and
gateways serve at `/api/v1/openapi.json`. [The web console](../howto/console.md#the-http-api) has examples.

`{cluster}` is the name of the cluster, `local` unless others are given. Bodies are JSON; fields without a
default must be passed. Errors are `application/problem+json` with `title`, `status` and, if a broker refused,
its `code`.

"""


def http_page() -> str:
    """Needs the extra `console`."""
    from skylark.console.api import openapi  # noqa: PLC0415

    document = openapi(["local"])
    schemas = document["components"]["schemas"]
    return HTTP_HEAD + "\n".join(
        "\n".join(_operation(method, path, operation, schemas))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )


def _operation(
    method: str, path: str, operation: dict[str, Any], schemas: dict[str, dict[str, Any]]
) -> Iterator[str]:
    yield f"## {method.upper()} {path.removeprefix('/api/v1/{cluster}/')}\n"
    yield f"`{method.upper()} {path}`\n"
    yield operation["summary"]
    if operation["description"]:
        yield f"\n{operation['description']}"
    asked = [each for each in operation["parameters"] if each["in"] == "query"]
    if asked:
        yield "\n| Parameter | Meaning |\n|---|---|"
        yield from (f"| `{each['name']}` | {_cell(each['description'])} |" for each in asked)
    if "requestBody" in operation:
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = schemas[reference.rpartition("/")[2]]
        if schema.get("description"):
            yield f"\n{' '.join(schema['description'].split())}"
        yield "\n| Field | Type | Default |\n|---|---|---|"
        for name, field in schema["properties"].items():
            default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
            yield f"| `{name}` | {_cell(_json_type(field))} | {default} |"
    yield ""


def _json_type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_json_type(each) for each in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_json_type(field['items'])}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"object of {_json_type(field['additionalProperties'])}"
    return str(field.get("format") or field.get("type") or "any value")


PAGES = {"commands": commands_page, "errors": errors_page, "http": http_page}

if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
