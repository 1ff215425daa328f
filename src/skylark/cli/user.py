"""`skylark user`: the users of servers with access control."""

from __future__ import annotations

import os
import secrets
import string
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.acl import RULE_COLUMNS, AccessOptions, read_rule, rule_document
from skylark.cli.errors import UsageError
from skylark.cli.options import Yes, confirm, connected, grouped, tabular
from skylark.cli.output import Listing, done, print_json, show

if TYPE_CHECKING:
    from skylark.admin.results import AclRule, UserAccount

app = typer.Typer(no_args_is_help=True, help="Users: create, change, delete, import and export.")

SECRET_CHARS = 32
LETTERS = string.ascii_letters + string.digits

Name = Annotated[str, typer.Argument(metavar="NAME")]
SecretFile = Annotated[
    Path | None,
    typer.Option("--secret-file", metavar="FILE", help="Read the secret from a file; - is standard input."),
]


@app.command()
@grouped
def create(
    *,
    name: Name,
    is_super: Annotated[bool, typer.Option("--super", help="May do everything.")] = False,
    secret_file: SecretFile = None,
    options: AccessOptions,
) -> None:
    """Create a user. Without --secret-file a secret is made, and printed once.

    Example: skylark user create billing
    """
    secret = _made_secret() if secret_file is None else _read_secret(secret_file)
    with connected(options.namesrv) as admin:
        admin.users.create(name, secret, is_super=is_super, cluster=options.cluster, broker=options.broker)
    document = {"user": name, "created": True}
    if secret_file is not None:
        done(f"user {name} created", document, as_json=options.as_json)
        return
    done(
        f"user {name} created; its secret, which is not shown again: {secret}",
        {**document, "secret": secret},
        as_json=options.as_json,
    )


@app.command("list")
@tabular
@grouped
def list_users(
    *,
    part: Annotated[str, typer.Argument(metavar="TEXT", help="Only names that contain it.")] = "",
    options: AccessOptions,
) -> None:
    """List users with their number of rules.

    Example: skylark user list
    """
    with connected(options.namesrv) as admin:
        users = admin.users.list(part, cluster=options.cluster, broker=options.broker)
        rules = admin.acls.list(part, cluster=options.cluster, broker=options.broker)
    rows = [(user.name, _kind(user), _status(user), len(rules.get(user.name, ()))) for user in sorted(users)]
    show(Listing(("user", "type", "status", "rules"), rows), as_json=options.as_json)


@app.command("show")
@grouped
def show_user(
    *,
    name: Name,
    options: AccessOptions,
) -> None:
    """Show a user and its rules. The secret is not shown; `export` writes it to a file.

    Example: skylark user show billing
    """
    with connected(options.namesrv) as admin:
        user = admin.users.get(name, cluster=options.cluster, broker=options.broker)
        if user is None:
            raise UsageError(f"there is no user {name!r}; `skylark user list` lists users")
        rules = admin.acls.get(name, cluster=options.cluster, broker=options.broker)
    if options.as_json:
        print_json({**_facts(user), "rules": [rule_document(rule) for rule in rules]})
        return
    typer.echo(f"{name}: {_kind(user)}, {_status(user)}")
    show(Listing(RULE_COLUMNS, [tuple(rule_document(rule).values()) for rule in rules]), as_json=False)


@app.command()
@grouped
def update(
    *,
    name: Name,
    is_super: Annotated[bool | None, typer.Option("--super/--normal", help="May do everything.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="May log in.")] = None,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Make a secret and print it once.")
    ] = False,
    secret_file: SecretFile = None,
    options: AccessOptions,
) -> None:
    """Change a user. It counts at once, for open connections too.

    Example: skylark user update billing --disabled
    """
    if new_secret and secret_file is not None:
        raise UsageError("pass --new-secret or --secret-file, not both")
    secret = _made_secret() if new_secret else None if secret_file is None else _read_secret(secret_file)
    if secret is None and is_super is None and enabled is None:
        raise UsageError("nothing to change; pass --super, --disabled, --new-secret or --secret-file")
    with connected(options.namesrv) as admin:
        admin.users.update(
            name,
            secret=secret,
            is_super=is_super,
            is_enabled=enabled,
            cluster=options.cluster,
            broker=options.broker,
        )
    sentence = f"user {name} changed"
    document: dict[str, Any] = {"user": name, "updated": True}
    if new_secret:
        sentence += f"; its secret, which is not shown again: {secret}"
        document["secret"] = secret
    done(sentence, document, as_json=options.as_json)


@app.command()
@grouped
def delete(
    *,
    name: Name,
    yes: Yes = False,
    options: AccessOptions,
) -> None:
    """Delete a user and its rules.

    Example: skylark user delete billing --yes
    """
    confirm(f"Delete user {name} and its rules?", yes=yes)
    with connected(options.namesrv) as admin:
        admin.users.delete(name, cluster=options.cluster, broker=options.broker)
    done(f"user {name} deleted", {"user": name, "deleted": True}, as_json=options.as_json)


@app.command("import")
@grouped
def import_users(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plain_acl.yml, or a file of `export`.")],
    options: AccessOptions,
) -> None:
    """Create the users of a file, with their rules. Users that exist stay as they are.

    Example: skylark user import plain_acl.yml
    """
    users, rules, warnings = read_users(file)
    for warning in warnings:
        typer.echo(f"skylark: {warning}", err=True)
    created = []
    with connected(options.namesrv) as admin:
        known = {user.name for user in admin.users.list(cluster=options.cluster, broker=options.broker)}
        for user in users:
            if user.name in known:
                continue
            admin.users.create(
                user.name, user.secret, is_super=user.is_super, cluster=options.cluster, broker=options.broker
            )
            if not user.is_enabled:
                admin.users.update(
                    user.name, is_enabled=False, cluster=options.cluster, broker=options.broker
                )
            if rules.get(user.name):
                admin.acls.create(user.name, rules[user.name], cluster=options.cluster, broker=options.broker)
            created.append(user.name)
    existing = [user.name for user in users if user.name not in created]
    done(
        f"{len(created)} users created, {len(existing)} exist already",
        {"created": created, "existing": existing},
        as_json=options.as_json,
    )


@app.command()
@grouped
def export(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Is written with mode 0600.")],
    options: AccessOptions,
) -> None:
    """Write all users, with secrets and rules, to a file for `import`. Needs a super user.

    Example: skylark user export users.json
    """
    from msgspec import json  # noqa: PLC0415

    with connected(options.namesrv) as admin:
        users = admin.users.list(cluster=options.cluster, broker=options.broker)
        rules = admin.acls.list(cluster=options.cluster, broker=options.broker)
    if any(not user.secret for user in users):
        raise UsageError("the broker shows no secrets; use the credentials of a super user")
    members = [
        {
            **_facts(user),
            "secret": user.secret,
            "rules": [rule_document(rule) for rule in rules.get(user.name, ())],
        }
        for user in users
    ]
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as output:  # noqa: PTH123 (the mode is given to os.open)
        os.fchmod(descriptor, 0o600)
        output.write(json.format(json.encode({"users": members})) + b"\n")
    done(
        f"{len(members)} users written to {file}",
        {"users": len(members), "file": str(file)},
        as_json=options.as_json,
    )


# --- Files ---


def read_users(file: Path) -> tuple[list[UserAccount], dict[str, list[AclRule]], list[str]]:
    """Users, rules by user, and warnings of a file. Raises UsageError, OSError."""
    from msgspec import DecodeError, json  # noqa: PLC0415

    from skylark.admin.results import AclRule, UserAccount  # noqa: PLC0415
    from skylark.auth.store import acl_info, convert_accounts  # noqa: PLC0415

    text = file.read_bytes()
    try:
        if file.suffix in (".yml", ".yaml"):
            users, acls, warnings = convert_accounts(_yaml(text))
            accounts = [UserAccount(user.name, user.is_super, user.is_enabled, user.secret) for user in users]
            return accounts, {acl.username: AclRule.read(acl_info(acl)) for acl in acls}, warnings
        members = json.decode(text)["users"]
        accounts = [
            UserAccount(each["user"], each["type"] == "Super", each["status"] == "enable", each["secret"])
            for each in members
        ]
        rules = {each["user"]: [read_rule(rule) for rule in each.get("rules", ())] for each in members}
    except (ValueError, KeyError, TypeError, DecodeError) as error:
        raise UsageError(f"{file}: not users: {error}") from None
    return accounts, rules, []


def _yaml(text: bytes) -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise UsageError("YAML needs a package: pip install pyyaml") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _facts(user: UserAccount) -> dict[str, Any]:
    return {"user": user.name, "type": _kind(user), "status": _status(user)}


def _kind(user: UserAccount) -> str:
    return "Super" if user.is_super else "Normal"


def _status(user: UserAccount) -> str:
    return "enable" if user.is_enabled else "disable"


# --- Secrets ---


def _made_secret() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(SECRET_CHARS))


def _read_secret(file: Path) -> str:
    return (sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")).strip()
