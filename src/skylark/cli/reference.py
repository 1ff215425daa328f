"""The reference of all commands, from the commands themselves: `python -m skylark.cli.reference > FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from skylark.cli.main import COMMANDS, app, load_command

HEAD = """# Commands

Every command of `skylark`, written by `python -m skylark.cli.reference`. Which command of `mqadmin` is which
of ours is said in [Coming from mqadmin](../howto/mqadmin.md).

- On a terminal there are tables and colours; elsewhere lines with tabs between the cells. `--json` prints
  JSON.
- Exit codes: 0 all is well; 1 something was found that is not (nothing by that key, a server that does not
  answer, a check that fails); 2 it cannot be done, and a sentence on standard error says why; 130 after
  Ctrl-C.
- `skylark --debug COMMAND` shows where an error comes from, and all that is logged.
  `skylark --install-completion` makes the shell complete commands, topics, groups and brokers.
- Name servers are `--namesrv`, else the variable `NAMESRV_ADDR`, else `127.0.0.1:9876`.
"""
EXAMPLE_WORDS = ("Example:", "Examples:")
HIDDEN_OPTIONS = frozenset({"--help", "--install-completion", "--show-completion"})


def root() -> Any:
    """The command with all its commands."""
    command = typer.main.get_group(app)
    command.commands = {name: load_command(name) for name in COMMANDS}
    return command


def commands(command: Any, path: tuple[str, ...] = ("skylark",)) -> Iterator[tuple[str, Any]]:
    """Every command below one, groups included, by its whole name."""
    for name in sorted(getattr(command, "commands", {})):
        found = command.commands[name]
        yield " ".join((*path, name)), found
        yield from commands(found, (*path, name))


def sentences_and_examples(text: str) -> tuple[str, list[str]]:
    """The help of a command without its examples, and these."""
    words: list[str] = []
    examples: list[str] = []
    seen = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith(EXAMPLE_WORDS):
            seen = True
            line = line.partition(":")[2].strip()  # noqa: PLW2901
        (examples if seen else words).append(line)
    return "\n".join(words).strip(), [line for line in examples if line]


def markdown() -> str:
    """The whole page."""
    parts = [HEAD]
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


if __name__ == "__main__":
    sys.stdout.write(markdown())
