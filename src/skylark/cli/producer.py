"""`skylark producer`: connected producers."""

from __future__ import annotations

from typing import Annotated

import typer

from skylark.cli.options import NAMESRV, AsJson, Broker, Namesrv, connected, tabular
from skylark.cli.output import Listing, show

app = typer.Typer(no_args_is_help=True, help="Connected producers.")

COLUMNS = ("group", "client", "address", "language", "version", "brokers")
LONG_COLUMNS = ("brokers",)


@app.command("list")
@tabular
def list_producers(
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="Only this group; all by default.")
    ] = None,
    broker: Broker = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """List connected producers, of one group or all, on one broker or all.

    Examples: skylark producer list

    skylark producer list shop
    """
    with connected(namesrv) as admin:
        if group is not None and broker is None:
            found = admin.clients.producers(group)
            rows = [
                (group, client.client_id, client.address, client.language, client.version, client.brokers)
                for client in found.clients
            ]
            show(Listing(COLUMNS, rows, failures=found.failures, long=LONG_COLUMNS), as_json=as_json)
            return
        names = [broker] if broker else sorted({node.name for node in admin.brokers.nodes()})
        rows = [
            (name, item.client_id, item.remote_ip, item.language, item.version, (at,))
            for at in names
            for name, items in sorted(admin.clients.all_producers(at).items())
            for item in items
            if group in (None, name)
        ]
    show(Listing(COLUMNS, rows, long=LONG_COLUMNS), as_json=as_json)
