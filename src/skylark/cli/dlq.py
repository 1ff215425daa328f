"""`skylark dlq`: dead letters of consumer groups. `skylark spark dlq` handles millions of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import message_text
from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, Group, Namesrv, Yes, confirm, connected, tabular
from skylark.cli.output import Listing, When, print_json, show

if TYPE_CHECKING:
    from skylark.admin.admin import Admin
    from skylark.admin.dead_letters import DeadLetter

app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: messages that a group failed to consume too often."
    " `skylark spark dlq` handles millions of them.",
)

LETTERS_MAX = 1000
EXIT_FAILED = 1
RESENT_COLUMNS = ("id", "to topic", "new id", "outcome")
Everything = Annotated[bool, typer.Option("--all", help="Also those that were sent again already.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")]


@app.command("list")
@tabular
def list_groups(namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List groups with dead letters: their total, and those not sent again.

    Example: skylark dlq list
    """
    with connected(namesrv) as admin:
        counts = admin.dead_letters.counts()
    rows = [(each.group, each.stored, each.waiting, When(each.last_ms)) for each in counts.values()]
    show(Listing(("group", "letters", "waiting", "last"), rows), as_json=as_json)


@app.command("show")
@tabular
def show_letters(
    group: Group,
    everything: Everything = False,
    limit: Limit = LETTERS_MAX,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the dead letters of a group that were not sent again, oldest first.

    Example: skylark dlq show billing
    """
    from skylark.admin import message_json  # noqa: PLC0415 - not for `--help`

    with connected(namesrv) as admin:
        letters = admin.dead_letters.find(group, all_letters=everything, letters_max=limit)
    if as_json:
        for letter in letters:
            first = {"origin_topic": letter.topic, "origin_message_id": letter.origin_message_id}
            print_json({**first, "died_ms": letter.died_ms, **message_json.document(letter.message)})
        return
    rows = [
        (
            When(letter.died_ms), letter.topic, letter.message.message_id, letter.message.tags or "",
            " ".join(letter.message.keys), message_text.beginning(letter.message),
        )
        for letter in letters
    ]  # fmt: skip
    show(
        Listing(("died", "topic", "id", "tags", "keys", "body"), rows, long=message_text.LONG_COLUMNS),
        as_json=False,
    )


@app.command()
@tabular
def resend(
    group: Group,
    message_id: Annotated[
        list[str] | None, typer.Option("--id", help="Only this one; may be repeated.")
    ] = None,
    to_all_groups: Annotated[
        bool, typer.Option("--to-all-groups", help="Send to the original topic: every group gets them again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be sent.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Send a group's dead letters to it again, and mark them: a second resend skips them.

    With --id only those are sent, and nothing is marked. Exit code 1 if some could not be sent.

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
    show(Listing(RESENT_COLUMNS, rows, long=("outcome",)), as_json=as_json)
    if report.failures:
        raise typer.Exit(EXIT_FAILED)


def _chosen(admin: Admin, group: str, message_ids: list[str]) -> list[DeadLetter]:
    """The dead letters with these unique or offset ids. Raises UsageError for other ids."""
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
