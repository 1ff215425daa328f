"""Logging in and out, and the users and rules of a cluster with access control 2.0."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from skylark.console.connections import WrongCredentials
from skylark.console.grid import Grid, GridColumn
from skylark.console.guard import cookie_of, set_cookie
from skylark.console.view import Ask, Console, PageView, language_of, redirect, text_of
from skylark.errors import BrokerError, RocketMQError
from skylark.settings.credentials import Credentials

Endpoint = Callable[[Request], Awaitable[Response]]


def login(console: Console) -> Endpoint:
    """The form, and what it sends: the token, or a user's name and secret, which the cluster checks."""

    async def endpoint(request: Request) -> Response:
        language = language_of(request)
        if request.method == "GET":
            return _form(console, language, request.query_params.get("next", "/"), "", 200)
        fields = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=10)
        name, secret, target = (fields.get(key, [""])[0] for key in ("name", "secret", "next"))
        credentials = Credentials(name, secret) if console.settings.login else None
        if credentials is not None:
            fault = await _refusal(console, credentials)
        elif hmac.compare_digest(secret.encode(), console.settings.token.encode()):
            fault = ""
        else:
            fault = text_of("login.wrong", language)
        if fault:
            return _form(console, language, target, fault, 403)
        key = console.logins.add(name if credentials is not None else "token", credentials)
        response = RedirectResponse(_local(target), 303)
        header, value = set_cookie(key, secure=console.settings.public_url.startswith("https:"))
        response.raw_headers.append((header, value))
        return response

    return endpoint


def _form(console: Console, language: str, target: str, fault: str, status: int) -> Response:
    html = console.render(
        "login.html",
        t=lambda key: text_of(key, language),
        language=language,
        next=_local(target),
        fault=fault,
        with_user=console.settings.login,
    )
    return HTMLResponse(html, status)


def _local(target: str) -> str:
    """A path of this console: a link must not lead elsewhere."""
    parts = urlsplit(target)
    is_own = not parts.scheme and not parts.netloc and target.startswith("/") and not target.startswith("//")
    return target if is_own and "\\" not in target else "/"


async def _refusal(console: Console, credentials: Credentials) -> str:
    """The sentence of the first cluster if it does not know the user; empty for a known one."""
    try:
        await console.connections.get(next(iter(console.settings.clusters)), credentials, is_login=True)
    except (WrongCredentials, RocketMQError) as error:
        return str(error)
    return ""


def logout(console: Console) -> Endpoint:
    """Forget the login."""

    async def endpoint(request: Request) -> Response:
        key = cookie_of(request.headers.get("cookie", ""))
        found = console.logins.find(key)
        console.logins.remove(key)
        if found is not None and found[1] is not None:
            await console.connections.drop(found[0])
        return redirect("/login")

    return endpoint


async def index(ask: Ask) -> PageView:
    """Users and rules; without access control, the broker's own sentence."""
    refusal = ""
    users, rules = [], []
    try:
        users = [
            {
                "user": user.name,
                "role": ask.t("super" if user.is_super else "normal"),
                "enabled": user.is_enabled,
            }
            for user in await ask.admin.users.list()
        ]
        rules = [
            {
                "user": user,
                "resource": rule.resource,
                "actions": list(rule.actions),
                "decision": rule.decision,
                "sources": list(rule.sources),
            }
            for user, parts in (await ask.admin.acls.list()).items()
            for rule in parts
        ]
    except BrokerError as error:
        refusal = error.remark or str(error)
    user_columns = (
        GridColumn("user", "name", lambda row: ask.href("access", "users", row["user"])),
        GridColumn("role"),
        GridColumn("enabled"),
    )
    rule_columns = (
        GridColumn("user", "name"),
        GridColumn("resource", "code"),
        GridColumn("actions", "words"),
        GridColumn("decision"),
        GridColumn("sources", "words"),
    )
    return PageView(
        template="access.html",
        nav="access",
        title=ask.t("access"),
        sentence=ask.t("access.sentence", users=len(users), rules=len(rules)),
        grids=(Grid("users", user_columns, users), Grid("rules", rule_columns, rules)),
        data={"can_change": not ask.settings.read_only and not refusal, "refusal": refusal},
        code=(
            ("skylark", "skylark user list"),
            ("skylark", "skylark acl list"),
            ("python", "admin.users.list()"),
        ),
    )
