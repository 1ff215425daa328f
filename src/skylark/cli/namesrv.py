"""`skylark namesrv`: run one (see `servers`), or ask and tell those that run."""

from __future__ import annotations

from typing import Annotated

import typer

from skylark.cli import servers
from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, Namesrv, Pairs, connected, pairs
from skylark.cli.output import Listing, done, show

app = servers.namesrv_app

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Such as ORDER_TOPIC_CONFIG.")]
Key = Annotated[str, typer.Argument(metavar="KEY")]


@app.command()
def config(
    like: Annotated[str, typer.Option("--like", help="Only keys that contain this.")] = "",
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the settings of all name servers, under RocketMQ's keys.

    Example: skylark namesrv config
    """
    with connected(namesrv) as admin:
        found = admin.name_servers.config()
    rows = [
        (address, key, value)
        for address, table in found.items()
        for key, value in sorted(table.items())
        if like.lower() in key.lower()
    ]
    show(Listing(("name server", "key", "value"), rows), as_json=as_json)


@app.command("set")
def set_config(settings: Pairs, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Change settings of all name servers, under RocketMQ's keys.

    Example: skylark namesrv set orderMessageEnable=true
    """
    changes = pairs(settings, "setting")
    with connected(namesrv) as admin:
        admin.name_servers.update_config(changes)
    done(f"{', '.join(settings)} set on {namesrv}", changes, as_json=as_json)


@app.command()
def kv(namespace: Namespace, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show a namespace of the key-value table that name servers keep.

    Example: skylark namesrv kv ORDER_TOPIC_CONFIG
    """
    with connected(namesrv) as admin:
        table = admin.name_servers.table(namespace)
    show(Listing(("key", "value"), sorted(table.items())), as_json=as_json)


@app.command()
def put(
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Set a value of the key-value table at all name servers.

    Example: skylark namesrv put ORDER_TOPIC_CONFIG orders broker-a:4
    """
    with connected(namesrv) as admin:
        admin.name_servers.put(namespace, key, value)
    done(f"{namespace} {key} is {value}", {"namespace": namespace, key: value}, as_json=as_json)


@app.command()
def delete(namespace: Namespace, key: Key, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Delete a value of the key-value table at all name servers.

    Example: skylark namesrv delete ORDER_TOPIC_CONFIG orders
    """
    with connected(namesrv) as admin:
        if admin.name_servers.get(namespace, key) is None:
            raise UsageError(
                f"there is no {key} in {namespace}; `skylark namesrv kv {namespace}` shows what is"
            )
        admin.name_servers.delete(namespace, key)
    done(f"{namespace} {key} is deleted", {"namespace": namespace, "deleted": key}, as_json=as_json)
