"""The dead-letter workbench: letters to read, edit, try and send again, with a result for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from skylark.admin.dead_letters import PROPERTY_RESENT_FROM, DeadLetter, Resent
from skylark.admin.server_calls import at_once
from skylark.console.grid import Grid, GridColumn, arranged
from skylark.console.pages.groups import members_of
from skylark.console.pages.messages import place_href, preview
from skylark.console.settings import ConsoleSettings
from skylark.console.view import LIST, Ask, BadForm, NotThere, PageView, list_page, redirect
from skylark.errors import RocketMQError
from skylark.model.names import retry_topic
from skylark.quantities import parse_rate

LETTERS_MAX = 200
KINDS_MAX = 8
RESEND_MAX = 1000
LETTER_KEYS = ("id", "died", "state", "topic", "tag", "keys", "attempts", "preview")
RESEND_S_MAX = 15.0
"""A browser waits for the answer; the command line has no such limit."""


async def index(ask: Ask) -> PageView:
    """Groups with dead letters."""
    look = await ask.look()
    rows = [
        {"group": name, "waiting": count.waiting, "kept": count.stored, "last": count.last_ms}
        for name, count in look.inventory.dead_letters.items()
        if count.stored
    ]
    columns = (
        GridColumn("group", "name", lambda row: ask.href("dead-letters", row["group"])),
        GridColumn("waiting", "number"),
        GridColumn("kept", "number"),
        GridColumn("last", "time"),
    )
    sortable = frozenset(column.key for column in columns)
    return await list_page(
        ask,
        "dead_letters",
        Grid("dead_letters", columns, rows, sort="-waiting", sortable=sortable),
        search=("group",),
        sentence={"waiting": f"{look.dead_letters:,}"},
        code=(
            ("skylark", f"skylark dlq list --namesrv {ask.connection.namesrv}"),
            ("python", "admin.dead_letters.counts()"),
        ),
        failures=look.failures,
        live_s=5,
    )


async def letters(ask: Ask) -> PageView:
    """The letters of a group that wait, or all; those on screen with whether they were sent again."""
    group, with_all = ask.path("group"), ask.arg("all") == "1"
    found = await ask.admin.dead_letters.find(group, all_letters=with_all, letters_max=LETTERS_MAX)
    word = ask.arg("q").lower()
    chosen = {
        letter.message.offset_message_id: letter
        for letter in found
        if word in _searched(letter, ask.settings)
    }
    columns: tuple[GridColumn, ...] = (
        GridColumn("died", "time", lambda row: row["place"]),
        GridColumn("state", "state"),
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"], "messages")),
        GridColumn("tag", "tag", optional=True),
        GridColumn("keys", "words", optional=True),
        GridColumn("attempts", "number"),
        GridColumn("preview", "field"),
        GridColumn("edit", "link", lambda row: ask.href("dead-letters", group, "edit", row["id"])),
    )
    if ask.settings.read_only:
        columns = columns[:-1]
    rows = [_letter_row(ask, id, letter) for id, letter in chosen.items()]
    choosable = "" if ask.settings.read_only else "id"
    grid = arranged(Grid("letters", columns, rows, choosable=choosable), page=ask.number("page", 1))

    async def is_sent(letter: DeadLetter) -> bool:
        return await _is_sent(ask, letter)

    sent = await at_once(is_sent, [chosen[row["id"]] for row in grid.rows])
    shown = [
        {**row, "state": "sent" if done is True else "waiting"}
        for row, done in zip(grid.rows, sent, strict=True)
    ]
    return PageView(
        template="dead_letters.html",
        nav="dead_letters",
        title=group,
        sentence=ask.t("letters.sentence", count=f"{len(rows):,}"),
        crumbs=((ask.t("dead_letters"), ask.href("dead-letters")), (group, ask.here())),
        grids=(replace(grid, rows=shown),),
        data={"group": group, "with_all": with_all, "kinds": _kinds(chosen.values())},
        document={"letters": [{key: row[key] for key in LETTER_KEYS} for row in shown], "count": len(rows)},
        code=(
            ("skylark", f"skylark dlq resend {group} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.dead_letters.resend("{group}")'),
        ),
    )


def _letter_row(ask: Ask, id: str, letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    return {
        "id": id,
        "died": letter.died_ms,
        "topic": letter.topic,
        "tag": message.tags or "",
        "keys": message.keys,
        "attempts": message.reconsume_times,
        "preview": "" if ask.settings.hide_bodies else preview(message, ask.settings),
        "place": place_href(ask, message),
        "edit": ask.t("letter.open"),
    }


def _kinds(letters: Iterable[DeadLetter]) -> list[tuple[str, int]]:
    """How many letters there are of each topic and tag, most first; each is a word of the filter."""
    counts = Counter(word for letter in letters for word in {letter.topic, letter.message.tags or ""} - {""})
    return counts.most_common(KINDS_MAX)


def _searched(letter: DeadLetter, settings: ConsoleSettings) -> str:
    message = letter.message
    return f"{letter.topic} {message.tags} {' '.join(message.keys)} {preview(message, settings)}".lower()


async def _is_sent(ask: Ask, letter: DeadLetter) -> bool:
    """Whether the group's retry topic has a copy that names this letter."""
    key = letter.message.unique_key
    if key is None:
        return False
    copies = (await ask.admin.messages.by_unique_key(retry_topic(letter.group), key)).messages
    own = letter.message.offset_message_id
    return any(copy.properties.get(PROPERTY_RESENT_FROM) == own for copy in copies)


async def resend(ask: Ask) -> PageView:
    """Send the chosen letters, or all that wait, at a rate; the result of each."""
    fields = await ask.form()
    ids = fields.get("chosen", "").split()
    results = await send_again(ask, ids, fields.get("rate", ""), to_all=fields.get("to_all") == "1")
    return _results(ask, ask.path("group"), results)


async def send_again(ask: Ask, ids: Sequence[str], rate_text: str, *, to_all: bool) -> list[Resent]:
    """Send the letters with these ids, or without ids all that wait. Raises BadForm."""
    group = ask.path("group")
    found = await ask.admin.dead_letters.find(group, all_letters=bool(ids), letters_max=RESEND_MAX)
    if ids:
        found = [letter for letter in found if letter.message.offset_message_id in set(ids)]
    if not found:
        raise BadForm(ask.t("letters.none"))
    try:
        rate = parse_rate(rate_text) if rate_text else None
    except ValueError as error:
        raise BadForm(str(error)) from None
    if rate is not None and len(found) / rate > RESEND_S_MAX:
        raise BadForm(ask.t("letters.slow", group=group, count=len(found), rate=f"{rate:g}"))
    results: list[Resent] = []
    if ids or rate is not None:
        for letter in found:
            results += (await ask.admin.dead_letters.resend(group, [letter], to_all_groups=to_all)).resent
            if rate is not None:
                await asyncio.sleep(1 / rate)
    else:
        results += (await ask.admin.dead_letters.resend(group, to_all_groups=to_all)).resent
    done = sum(1 for item in results if item.error is None)
    ask.record("resend", group, after={"letters": len(results), "sent": done, "to_all_groups": to_all})
    return results


def result_rows(results: Iterable[Resent]) -> list[dict[str, Any]]:
    return [
        {
            "state": "sent" if item.error is None else "failed",
            "keys": item.letter.message.keys,
            "letter": item.letter.message.offset_message_id,
            "topic": item.target_topic,
            "new_id": item.message_id,
            "reason": "" if item.error is None else str(item.error),
        }
        for item in results
    ]


def _results(ask: Ask, group: str, results: list[Resent]) -> PageView:
    columns = (
        GridColumn("state", "state"),
        GridColumn("keys", "words"),
        GridColumn("letter", "code"),
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"], "messages")),
        GridColumn("new_id", "code"),
        GridColumn("reason"),
    )
    failed = sum(1 for item in results if item.error is not None)
    return PageView(
        template="list.html",
        nav="dead_letters",
        title=group,
        sentence=ask.t("letters.done", sent=len(results) - failed, failed=failed),
        crumbs=((ask.t("dead_letters"), ask.href("dead-letters")), (group, ask.href("dead-letters", group))),
        grids=(Grid("results", columns, result_rows(results)),),
        data=LIST,
    )


async def _letter(ask: Ask) -> DeadLetter:
    group = ask.path("group")
    for letter in await ask.admin.dead_letters.find(group, all_letters=True, letters_max=RESEND_MAX):
        if letter.message.offset_message_id == ask.path("id"):
            return letter
    raise NotThere(ask.t("letter.missing", id=ask.path("id")))


async def edit_form(ask: Ask) -> PageView:
    """A letter beside a field for its new body, and a button to try it on a member."""
    return await _edit_page(ask, await _letter(ask), None)


async def _edit_page(ask: Ask, letter: DeadLetter, outcome: tuple[str, str] | None) -> PageView:
    try:
        online = await members_of(ask, letter.group)
    except RocketMQError:
        online = None
    body = "" if ask.settings.hide_bodies else letter.message.plain_body.decode(errors="replace")
    return PageView(
        template="letter.html",
        nav="dead_letters",
        title=letter.message.message_id,
        sentence=ask.t("letter.sentence", group=letter.group, count=letter.message.reconsume_times),
        crumbs=(
            (ask.t("dead_letters"), ask.href("dead-letters")),
            (letter.group, ask.href("dead-letters", letter.group)),
        ),
        data={
            "letter": letter,
            "body": body,
            "members": [] if online is None else [client.client_id for client in online.clients],
            "outcome": outcome,
            "place": place_href(ask, letter.message),
            "journey": ask.href("topics", letter.topic, "journey", letter.message.message_id),
        },
    )


async def edit(ask: Ask) -> PageView | Response:
    """Send the letter again with the body of the form."""
    letter, fields = await _letter(ask), await ask.form()
    body = fields.get("body", "").replace("\r\n", "\n").encode()
    to_all = fields.get("to_all") == "1"
    if body == letter.message.plain_body:
        resent = (await ask.admin.dead_letters.resend(letter.group, [letter], to_all_groups=to_all)).resent[0]
    else:
        resent = await ask.admin.dead_letters.resend_edited(letter, body, to_all_groups=to_all)
    if resent.error is not None:
        return await _edit_page(ask, letter, ("bad", str(resent.error)))
    change = ask.record("resend", letter.group, after={"letter": ask.path("id"), "new_id": resent.message_id})
    return redirect(ask.href("dead-letters", letter.group, changed=change.number))


async def attempt(ask: Ask) -> PageView:
    """Have one member consume the stored letter now: its listener runs for real, no offset moves."""
    letter, fields = await _letter(ask), await ask.form()
    try:
        result = await ask.admin.clients.consume_directly(
            letter.group, fields.get("member", ""), letter.message
        )
        level = "good" if result.consume_result == "CR_SUCCESS" else "bad"
        outcome = (level, f"{result.consume_result} {result.remark or ''}".strip())
    except RocketMQError as error:
        outcome = ("bad", str(error))
    ask.record("try", letter.group, after={"letter": ask.path("id"), "result": outcome[1]})
    return await _edit_page(ask, letter, outcome)
