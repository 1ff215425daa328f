"""`skylark dlq`: messages that groups have given up on. For millions of them see `skylark spark dlq`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import message_text
from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, Group, Namesrv, Yes, asked_at_once, confirm, connected
from skylark.cli.output import Listing, When, print_json, show
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX

if TYPE_CHECKING:
    from skylark.admin.dead_letters import DeadLetter
    from skylark.admin.sync import Admin

app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: messages that a group has failed too often. `skylark spark dlq` is for very many.",
)

LETTERS_MAX = 1000
EXIT_FAILED = 1
RESENT_COLUMNS = ("id", "to topic", "new id", "outcome")
Everything = Annotated[bool, typer.Option("--all", help="Those that were sent again already, too.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]


@app.command("list")
def list_groups(namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List the groups that have dead letters: how many there are, and how many wait.

    Example: skylark dlq list
    """
    with connected(namesrv) as admin:
        topics = [name for name in admin.topics.names() if name.startswith(DEAD_LETTER_TOPIC_PREFIX)]
        rows = asked_at_once(lambda topic: _count(admin, topic), topics)
    show(Listing(("group", "letters", "waiting", "last"), rows), as_json=as_json)


def _count(admin: Admin, topic: str) -> tuple[object, ...]:
    group = topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
    stats = admin.topics.stats(topic)
    done = admin.offsets.committed(group, topic)
    waiting = sum(part.end - max(part.begin, done.get(part.queue) or 0) for part in stats.queues)
    last_ms = max((part.last_stored_ms or 0 for part in stats.queues), default=0)
    return (group, stats.messages, waiting, When(last_ms or None))


@app.command("show")
def show_letters(
    group: Group,
    everything: Everything = False,
    limit: Limit = LETTERS_MAX,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show a group's dead letters that were not sent again yet, oldest first.

    Example: skylark dlq show billing
    """
    with connected(namesrv) as admin:
        letters = admin.dead_letters.find(group, all_letters=everything, letters_max=limit)
    if as_json:
        for letter in letters:
            first = {"origin_topic": letter.topic, "origin_message_id": letter.origin_message_id}
            print_json({**first, "died_ms": letter.died_ms, **message_text.received_document(letter.message)})
        return
    rows = [
        (
            When(letter.died_ms), letter.topic, letter.message.message_id, letter.message.tags or "",
            " ".join(letter.message.keys), message_text.beginning(letter.message),
        )
        for letter in letters
    ]  # fmt: skip
    show(Listing(("died", "topic", "id", "tags", "keys", "body"), rows), as_json=False)


@app.command()
def resend(
    group: Group,
    message_id: Annotated[
        list[str] | None, typer.Option("--id", help="Only this one; may be said several times.")
    ] = None,
    to_all_groups: Annotated[
        bool, typer.Option("--to-all-groups", help="To the first topic: every group gets them again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, send nothing.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Send a group's dead letters to it once more, and mark them: a second resend does not repeat them.

    With --id those alone are sent, and nothing is marked. Exit code 1 if some could not be sent.

    Examples: skylark dlq resend billing --dry-run

    skylark dlq resend billing --yes
    """
    with connected(namesrv) as admin:
        chosen = _chosen(admin, group, message_id) if message_id else None
        letters = chosen if chosen is not None else admin.dead_letters.find(group)
        count = f"{len(letters)}{' or more' if len(letters) >= LETTERS_MAX else ''}"
        if dry_run:
            planned = [(letter.message.message_id, letter.topic, None, "would be sent") for letter in letters]
            show(Listing(RESENT_COLUMNS, planned), as_json=as_json)
            return
        if letters:
            confirm(f"Send {count} dead letters of group {group} again?", yes=yes)
        report = admin.dead_letters.resend(group, chosen, to_all_groups=to_all_groups)
    rows = [
        (
            item.letter.message.message_id, item.target_topic, item.message_id,
            "sent" if item.error is None else str(item.error),
        )
        for item in report.resent
    ]  # fmt: skip
    show(Listing(RESENT_COLUMNS, rows), as_json=as_json)
    if report.failures:
        raise typer.Exit(EXIT_FAILED)


def _chosen(admin: Admin, group: str, message_ids: list[str]) -> list[DeadLetter]:
    """The letters with these ids, of their sender or of a place in a log. Raises Mistake for others."""
    letters: dict[str, DeadLetter] = {}
    for letter in admin.dead_letters.find(group, all_letters=True):
        message = letter.message
        for name in (message.message_id, message.offset_message_id, letter.origin_message_id):
            letters[name] = letter
    if missing := [name for name in message_ids if name not in letters]:
        raise UsageError(
            f"group {group} has no dead letter {', '.join(missing)};"
            f" `skylark dlq show {group} --all` lists them"
        )
    return [letters[name] for name in message_ids]
