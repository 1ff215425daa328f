"""Changes of users and rules of a cluster with access control 2.0. A secret is made here and shown once."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.responses import Response

from skylark.admin.results import AclRule, UserAccount
from skylark.console.changes import Change
from skylark.console.grid import Grid, GridColumn
from skylark.console.view import Ask, BadForm, NotThere, PageView, redirect

SECRET_BYTES = 24
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
KINDS = ("Topic", "Group", "Cluster")
RULE_COLUMNS = (
    GridColumn("resource", "code"),
    GridColumn("actions", "words"),
    GridColumn("decision"),
    GridColumn("sources", "words"),
)


async def one(ask: Ask) -> PageView:
    """A user with its rules."""
    return await _page(ask, await account(ask))


async def account(ask: Ask) -> UserAccount:
    """Raises NotThere."""
    name = ask.path("user")
    found = await ask.admin.users.get(name)
    if found is None or not found.name:
        raise NotThere(ask.t("user.missing", user=name))
    return found


async def _page(ask: Ask, user: UserAccount, secret: str = "") -> PageView:
    rules = [_plain(rule) for rule in await ask.admin.acls.get(user.name)]
    facts = [
        ("role", ask.t("super" if user.is_super else "normal"), "text", None),
        ("enabled", ask.t("yes" if user.is_enabled else "no"), "text", None),
    ]
    return PageView(
        template="user.html",
        nav="access",
        title=user.name,
        sentence=ask.t("user.sentence", rules=len(rules)),
        crumbs=((ask.t("access"), ask.href("access")), (user.name, ask.href("access", "users", user.name))),
        grids=(Grid("rules", RULE_COLUMNS, rules),),
        data={"user": user, "facts": facts, "rules": rules, "secret": secret, "actions": ACTIONS},
        document={"user": user.name, "super": user.is_super, "enabled": user.is_enabled, "rules": rules},
        code=(
            ("skylark", f"skylark user show {user.name}"),
            ("skylark", f"skylark acl create {user.name} 'Topic:orders' --actions Pub,Sub"),
            ("python", f'admin.acls.get("{user.name}")'),
        ),
    )


def _plain(rule: AclRule) -> dict[str, Any]:
    return {
        "resource": rule.resource,
        "actions": list(rule.actions),
        "decision": rule.decision,
        "sources": list(rule.sources),
        "policy": rule.policy,
    }


def _rule(fields: dict[str, Any]) -> AclRule:
    return AclRule(
        fields["resource"],
        tuple(fields["actions"]),
        fields["decision"],
        tuple(fields["sources"]),
        fields["policy"],
    )


# --- Users ---


async def create(ask: Ask) -> PageView:
    """Make a user with a new secret, which only this answer shows."""
    fields = await ask.form()
    name, is_super = fields.get("name", "").strip(), fields.get("super") == "1"
    if not name:
        raise BadForm(ask.t("user.nameless"))
    return await _page(ask, UserAccount(name, is_super), await make_user(ask, name, is_super=is_super))


async def make_user(ask: Ask, name: str, *, is_super: bool) -> str:
    """Return its secret."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    await ask.admin.users.create(name, secret, is_super=is_super)
    ask.record("create_user", name, before={"user": name}, after={"super": is_super})
    return secret


async def update(ask: Ask) -> Response:
    """Change whether a user is enabled and a super user."""
    user, fields = await account(ask), await ask.form()
    is_enabled, is_super = fields.get("enabled") == "1", fields.get("super") == "1"
    change = await set_user(ask, user, is_enabled=is_enabled, is_super=is_super)
    return redirect(ask.href("access", "users", user.name, changed=change.number))


async def set_user(ask: Ask, user: UserAccount, *, is_enabled: bool, is_super: bool) -> Change:
    await ask.admin.users.update(user.name, is_enabled=is_enabled, is_super=is_super)
    before = {"user": user.name, "fields": {"is_enabled": user.is_enabled, "is_super": user.is_super}}
    after = {"is_enabled": is_enabled, "is_super": is_super}
    return ask.record("update_user", user.name, before=before, after=after)


async def renew_secret(ask: Ask) -> PageView:
    """Replace the secret by a new one, which only this answer shows."""
    user, secret = await account(ask), secrets.token_urlsafe(SECRET_BYTES)
    await ask.admin.users.update(user.name, secret=secret)
    ask.record("renew_secret", user.name)
    return await _page(ask, user, secret)


async def delete(ask: Ask) -> Response:
    """Delete a user with its rules, if the name was typed."""
    user, fields = await account(ask), await ask.form()
    if fields.get("name", "").strip() != user.name:
        raise BadForm(ask.t("delete.name", name=user.name))
    await ask.admin.users.delete(user.name)
    change = ask.record("delete_user", user.name)
    return redirect(ask.href("access", changed=change.number))


async def undo_create(ask: Ask, before: dict[str, Any]) -> None:
    await ask.admin.users.delete(before["user"])


async def undo_update(ask: Ask, before: dict[str, Any]) -> None:
    await ask.admin.users.update(before["user"], **before["fields"])


# --- Rules ---


async def put_rule(ask: Ask) -> Response:
    """Add the rule of a resource, or replace it."""
    user, fields = await account(ask), await ask.form()
    resource = fields.get("resource", "").strip()
    kind, colon, name = resource.partition(":")
    if resource != "*" and not (colon and name and kind in KINDS):
        raise BadForm(ask.t("rule.resource", resource=resource))
    actions = [name for name in ACTIONS if name in fields.get("actions", "").split("\n")]
    if not actions:
        raise BadForm(ask.t("rule.actions"))
    decision = "Deny" if fields.get("decision") == "Deny" else "Allow"
    rule = AclRule(resource, tuple(actions), decision, tuple(fields.get("sources", "").split()))
    old = next((each for each in await ask.admin.acls.get(user.name) if each.resource == resource), None)
    await (ask.admin.acls.create if old is None else ask.admin.acls.update)(user.name, [rule])
    before = {"user": user.name, "resource": resource, "rule": None if old is None else _plain(old)}
    change = ask.record("put_rule", f"{user.name} {resource}", before=before, after=_plain(rule))
    return redirect(ask.href("access", "users", user.name, changed=change.number))


async def delete_rule(ask: Ask) -> Response:
    """Delete the rule of a resource."""
    user, fields = await account(ask), await ask.form()
    resource = fields.get("resource", "")
    old = next((each for each in await ask.admin.acls.get(user.name) if each.resource == resource), None)
    if old is None:
        raise NotThere(ask.t("rule.missing", user=user.name, resource=resource))
    await ask.admin.acls.delete(user.name, resource)
    before = {"user": user.name, "resource": resource, "rule": _plain(old)}
    change = ask.record("delete_rule", f"{user.name} {resource}", before=before)
    return redirect(ask.href("access", "users", user.name, changed=change.number))


async def undo_rule(ask: Ask, before: dict[str, Any]) -> None:
    """Restore the rule of a resource, or that there was none."""
    user, resource, rule = before["user"], before["resource"], before["rule"]
    known = [each.resource for each in await ask.admin.acls.get(user)]
    if rule is None:
        await ask.admin.acls.delete(user, resource)
    elif resource in known:
        await ask.admin.acls.update(user, [_rule(rule)])
    else:
        await ask.admin.acls.create(user, [_rule(rule)])
