"""`skylark acl`: the rules of users, and which of them decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import (
    NAMESRV,
    AsJson,
    Broker,
    Cluster,
    Namesrv,
    Yes,
    confirm,
    connected,
    grouped,
    tabular,
)
from skylark.cli.output import Listing, done, print_json, show

if TYPE_CHECKING:
    from skylark.admin.results import AclRule
    from skylark.auth.model import Acl

app = typer.Typer(no_args_is_help=True, help="Rights of users: create, delete, list, test.")

RULE_COLUMNS = ("resource", "actions", "from", "decision", "policy")
ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
REFUSED_EXIT = 1

User = Annotated[str, typer.Argument(metavar="USER")]
Resource = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Topic:NAME, Group:PREFIX*, Cluster:*, or * for all.")
]


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Which servers are asked or changed, and how the answer is printed."""

    cluster: Cluster = None
    broker: Broker = None
    namesrv: Namesrv = NAMESRV
    as_json: AsJson = False


@app.command()
@grouped
def create(
    *,
    user: User,
    resource: Resource,
    actions: Annotated[str, typer.Option("--actions", metavar="LIST", help=f"Of {', '.join(ACTIONS)}.")],
    deny: Annotated[bool, typer.Option("--deny", help="Deny it instead of allowing it.")] = False,
    sources: Annotated[
        list[str] | None, typer.Option("--from", metavar="ADDRESS", help="Only from it: an address or CIDR.")
    ] = None,
    options: AccessOptions,
) -> None:
    """Add a rule to a user, or replace the one of the same resource.

    Examples: skylark acl create billing 'Topic:order*' --actions Sub

    skylark acl create billing Group:billing --actions Sub --from 10.0.0.0/8
    """
    from skylark.admin.results import AclRule  # noqa: PLC0415

    rule = AclRule(resource, _actions(actions), "Deny" if deny else "Allow", tuple(sources or ()))
    with connected(options.namesrv) as admin:
        admin.acls.create(user, [rule], cluster=options.cluster, broker=options.broker)
    done(
        _sentence(user, rule), {"user": user, "resource": resource, "created": True}, as_json=options.as_json
    )


@app.command()
@grouped
def update(
    *,
    user: User,
    resource: Resource,
    actions: Annotated[
        str | None, typer.Option("--actions", metavar="LIST", help=f"Of {', '.join(ACTIONS)}.")
    ] = None,
    deny: Annotated[bool | None, typer.Option("--deny/--allow", help="What the rule does.")] = None,
    sources: Annotated[
        list[str] | None, typer.Option("--from", metavar="ADDRESS", help="Only from it: an address or CIDR.")
    ] = None,
    options: AccessOptions,
) -> None:
    """Change the given parts of a rule.

    Example: skylark acl update billing 'Topic:order*' --actions Pub,Sub
    """
    if actions is None and deny is None and not sources:
        raise UsageError("nothing to change; pass --actions, --deny, --allow or --from")
    with connected(options.namesrv) as admin:
        rules = admin.acls.get(user, cluster=options.cluster, broker=options.broker)
        found = [rule for rule in rules if rule.resource == resource]
        if not found:
            raise UsageError(f"{user} has no rule for {resource}; `skylark acl create` adds one")
        rule = replace(
            found[0],
            actions=found[0].actions if actions is None else _actions(actions),
            decision=found[0].decision if deny is None else "Deny" if deny else "Allow",
            sources=tuple(sources) if sources else found[0].sources,
        )
        admin.acls.update(user, [rule], cluster=options.cluster, broker=options.broker)
    done(
        _sentence(user, rule), {"user": user, "resource": resource, "updated": True}, as_json=options.as_json
    )


@app.command()
@grouped
def delete(
    *,
    user: User,
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="Only its rule; all rules by default.")
    ] = "",
    yes: Yes = False,
    options: AccessOptions,
) -> None:
    """Delete a rule of a user, or all.

    Example: skylark acl delete billing 'Topic:order*' --yes
    """
    what = f"the rule for {resource}" if resource else "all rules"
    confirm(f"Delete {what} of {user}?", yes=yes)
    with connected(options.namesrv) as admin:
        admin.acls.delete(user, resource, cluster=options.cluster, broker=options.broker)
    done(
        f"{what} of {user} deleted",
        {"user": user, "resource": resource or None, "deleted": True},
        as_json=options.as_json,
    )


@app.command("list")
@tabular
@grouped
def list_rules(
    *,
    user: Annotated[str, typer.Argument(metavar="TEXT", help="Only users whose name contains it.")] = "",
    resource: Annotated[
        str, typer.Option("--resource", metavar="TEXT", help="Only resources that contain it.")
    ] = "",
    options: AccessOptions,
) -> None:
    """List the rules of users.

    Example: skylark acl list --resource Topic:orders
    """
    with connected(options.namesrv) as admin:
        found = admin.acls.list(user, resource, cluster=options.cluster, broker=options.broker)
    rows = [(name, *rule_document(rule).values()) for name, rules in sorted(found.items()) for rule in rules]
    show(Listing(("user", *RULE_COLUMNS), rows), as_json=options.as_json)


@app.command("show")
@grouped
def show_rules(
    *,
    user: User,
    options: AccessOptions,
) -> None:
    """Show the rules of one user, the most specific first: of those that apply, the first decides.

    Example: skylark acl show billing
    """
    with connected(options.namesrv) as admin:
        rules = admin.acls.get(user, cluster=options.cluster, broker=options.broker)
    acl = _acl(user, rules)
    ordered = [(each, "Custom") for each in sorted(acl.custom, key=lambda each: each.rank)]
    ordered += [(each, "Default") for each in sorted(acl.default, key=lambda each: each.rank)]
    rows = [
        (
            user,
            str(each.resource),
            sorted(action.value for action in each.actions),
            list(each.sources),
            each.decision,
            policy,
        )
        for each, policy in ordered
    ]
    show(Listing(("user", *RULE_COLUMNS), rows), as_json=options.as_json)


@app.command("test")
@grouped
def test_access(
    *,
    user: User,
    action: Annotated[str, typer.Argument(metavar="ACTION", help=f"Of {', '.join(ACTIONS[1:])}.")],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="Topic:NAME, Group:NAME, Cluster:NAME.")
    ],
    address: Annotated[str, typer.Option("--from", metavar="ADDRESS", help="Of the client.")] = "127.0.0.1",
    options: AccessOptions,
) -> None:
    """Tell whether a user may do something, and which rule decides. Exit code 1 if not.

    Example: skylark acl test billing Sub Topic:orders --from 10.1.2.3
    """
    with connected(options.namesrv) as admin:
        account = admin.users.get(user, cluster=options.cluster, broker=options.broker)
        rules = admin.acls.get(user, cluster=options.cluster, broker=options.broker)
    if account is None:
        raise UsageError(f"there is no user {user!r}; `skylark user list` lists users")
    if not account.is_enabled:
        allowed, reason = False, "the user is disabled"
    elif account.is_super:
        allowed, reason = True, "a super user may do everything"
    else:
        allowed, reason = _decision(user, rules, action, resource, address)
    if options.as_json:
        print_json({"user": user, "allowed": allowed, "reason": reason})
    else:
        typer.echo(f"{'allowed' if allowed else 'refused'}: {reason}")
    if not allowed:
        raise typer.Exit(REFUSED_EXIT)


@app.command("export")
@grouped
def export_rules(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    options: AccessOptions,
) -> None:
    """Write the rules of all users to a file for `skylark acl import`.

    Example: skylark acl export rules.json
    """
    from msgspec import json  # noqa: PLC0415

    with connected(options.namesrv) as admin:
        found = admin.acls.list(cluster=options.cluster, broker=options.broker)
    members = {name: [rule_document(rule) for rule in rules] for name, rules in sorted(found.items())}
    file.write_bytes(json.format(json.encode(members)) + b"\n")
    count = sum(map(len, members.values()))
    done(f"{count} rules written to {file}", {"rules": count, "file": str(file)}, as_json=options.as_json)


@app.command("import")
@grouped
def import_rules(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `skylark acl export`.")],
    options: AccessOptions,
) -> None:
    """Add the rules of a file to users that exist; rules of the same resource are replaced.

    Example: skylark acl import rules.json
    """
    from msgspec import DecodeError, json  # noqa: PLC0415

    try:
        rules = {
            user: [read_rule(member) for member in members]
            for user, members in json.decode(file.read_bytes()).items()
        }
    except (KeyError, TypeError, AttributeError, DecodeError) as error:
        raise UsageError(f"{file}: not rules: {error}") from None
    with connected(options.namesrv) as admin:
        for user, each in rules.items():
            admin.acls.create(user, each, cluster=options.cluster, broker=options.broker)
    count = sum(map(len, rules.values()))
    done(
        f"{count} rules of {len(rules)} users imported",
        {"rules": count, "users": len(rules)},
        as_json=options.as_json,
    )


# --- Rules ---


def rule_document(rule: AclRule) -> dict[str, Any]:
    """A rule as a member of JSON, and in the order of RULE_COLUMNS a row."""
    return {
        "resource": rule.resource,
        "actions": list(rule.actions),
        "from": list(rule.sources),
        "decision": rule.decision,
        "policy": rule.policy,
    }


def read_rule(member: dict[str, Any]) -> AclRule:
    """The rule of a member of JSON. Raises KeyError, TypeError."""
    from skylark.admin.results import AclRule  # noqa: PLC0415

    return AclRule(
        member["resource"],
        tuple(member["actions"]),
        member["decision"],
        tuple(member.get("from", ())),
        member.get("policy", "Custom"),
    )


def _sentence(user: str, rule: AclRule) -> str:
    where = f" from {', '.join(rule.sources)}" if rule.sources else ""
    return f"{user}: {rule.decision} {', '.join(rule.actions)} on {rule.resource}{where}"


def _actions(text: str) -> tuple[str, ...]:
    words = {word.lower(): word for word in ACTIONS}
    given = [word.strip() for word in text.split(",") if word.strip()]
    if not given:
        raise UsageError(f"no action given; use {', '.join(ACTIONS)}")
    if unknown := [word for word in given if word.lower() not in words]:
        raise UsageError(f"unknown action {unknown[0]!r}; use {', '.join(ACTIONS)}")
    return tuple(words[word.lower()] for word in given)


def _acl(user: str, rules: list[AclRule]) -> Acl:
    from skylark.auth.store import acl_of  # noqa: PLC0415
    from skylark.protocol.bodies import AclInfo, Policy  # noqa: PLC0415

    policies = [Policy(rule.policy, [rule.to_entry()]) for rule in rules]
    return acl_of(AclInfo(f"User:{user}", policies))


def _decision(user: str, rules: list[AclRule], action: str, resource: str, address: str) -> tuple[bool, str]:
    """Whether rules allow an action, and why. Raises UsageError."""
    import ipaddress  # noqa: PLC0415

    from skylark.auth.model import NeededAccess, Pattern, Resource, parse_actions  # noqa: PLC0415

    wanted, actions = Resource.parse(resource), parse_actions([action])
    if wanted is None or wanted.pattern is not Pattern.LITERAL:
        raise UsageError(f"invalid resource {resource!r}; use Topic:NAME, Group:NAME or Cluster:NAME")
    if not actions:
        raise UsageError(f"unknown action {action!r}; use {', '.join(ACTIONS[1:])}")
    try:
        source = ipaddress.ip_address(address)
    except ValueError:
        raise UsageError(f"invalid address {address!r}; use an IP address") from None
    entry = _acl(user, rules).deciding(NeededAccess(wanted, actions), source)
    if entry is None:
        return False, "no rule applies"
    sources = f" from {', '.join(entry.sources)}" if entry.sources else ""
    words = ", ".join(sorted(each.value for each in entry.actions))
    return entry.is_allowed, f"{entry.decision} {words} on {entry.resource}{sources}"
