"""The application: the table of routes, errors as pages, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from urllib.parse import quote

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from skylark.console import api
from skylark.console.connections import WrongCredentials
from skylark.console.guard import App, Denied, Guard
from skylark.console.pages import (
    access,
    brokers,
    changes,
    dead_letters,
    groups,
    messages,
    overview,
    pipelines,
    resets,
    servers,
    sql,
    tables,
    topics,
    users,
)
from skylark.console.settings import ConsoleSettings
from skylark.console.view import Ask, BadForm, Console, NotThere, Page, PageView, failed, rendered
from skylark.errors import NoRoute, RocketMQError
from skylark.tasks import Tasks

PAGE_TIMEOUT_S = 20.0
SUFFIXES = ("json", "csv")
CONNECTIONS_MAX = 256
HEADER_BYTES_MAX = 32 << 10
HEAD_S = 10.0
"""For the head of a request; its body has `guard.BODY_S`."""

PAGES: tuple[tuple[str, Page], ...] = (
    ("", overview.show),
    ("topics", topics.index),
    ("topics/{topic}", topics.queues),
    ("topics/{topic}/groups", topics.groups),
    ("topics/{topic}/settings", topics.settings),
    ("topics/{topic}/messages", messages.index),
    ("topics/{topic}/messages/{id}", messages.one),
    ("topics/{topic}/at/{broker}/{queue}/{offset}", messages.at_place),
    ("topics/{topic}/journey/{id}", messages.journey),
    ("groups", groups.index),
    ("groups/{group}", groups.progress),
    ("groups/{group}/members", groups.members),
    ("groups/{group}/members/{client}", groups.member),
    ("groups/{group}/settings", groups.settings),
    ("groups/{group}/why", resets.why),
    ("groups/{group}/reset", resets.form),
    ("dead-letters", dead_letters.index),
    ("dead-letters/{group}", dead_letters.letters),
    ("pipelines", pipelines.index),
    ("pipelines/{job}", pipelines.one),
    ("tables", tables.index),
    ("tables/{table}", tables.one),
    ("sql", sql.show),
    ("clients", brokers.clients),
    ("health", brokers.check_health),
    ("access", access.index),
    ("access/users/{user}", users.one),
    ("changes", changes.index),
    ("brokers", brokers.index),
    ("brokers/{broker}", brokers.runtime),
    ("brokers/{broker}/settings", brokers.settings),
    ("name-servers", brokers.name_servers),
    ("map", servers.show_map),
    ("store", servers.stores),
    ("controllers", servers.controllers),
    ("proxies", servers.proxies),
    ("find", overview.find),
)
"""By their path under a cluster. Each is also there as `.json` and `.csv`."""
CHANGE_PAGES: tuple[tuple[str, Page], ...] = (
    ("topics/{topic}/send", messages.send_form),
    ("new-topic", changes.new_topic_form),
    ("dead-letters/{group}/edit/{id}", dead_letters.edit_form),
)
"""Forms."""
FORMS: tuple[tuple[str, Page], ...] = (
    ("topics/{topic}/send", messages.send),
    ("new-topic", changes.new_topic),
    ("topics/{topic}/settings", changes.update_topic),
    ("topics/{topic}/delete", changes.delete_topic),
    ("groups/{group}/settings", changes.update_group),
    ("groups/{group}/reset", resets.apply),
    ("brokers/{broker}/settings", changes.update_broker),
    ("name-servers/kv", changes.put_value),
    ("dead-letters/{group}/resend", dead_letters.resend),
    ("dead-letters/{group}/edit/{id}", dead_letters.edit),
    ("dead-letters/{group}/edit/{id}/try", dead_letters.attempt),
    ("access/users", users.create),
    ("access/users/{user}", users.update),
    ("access/users/{user}/secret", users.renew_secret),
    ("access/users/{user}/delete", users.delete),
    ("access/users/{user}/rules", users.put_rule),
    ("access/users/{user}/rules/delete", users.delete_rule),
    ("changes/{number}/undo", changes.undo),
)
"""Changes, by POST. They do not exist in a console that only reads."""


def application(settings: ConsoleSettings) -> App:
    """The console as an ASGI application. Raises SettingsError, OSError."""
    console = Console(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = Tasks()
        if settings.pages:
            tasks.spawn(console.warm_up())
        try:
            yield
        finally:
            await tasks.close()
            await console.connections.close()

    app = Starlette(routes=_routes(console), lifespan=lifespan, exception_handlers={Denied: _denied})
    return Guard(app, settings, console.logins)


async def _denied(request: Request, error: Exception) -> Response:
    """A body that is too large or too slow: the application has begun to read it."""
    assert isinstance(error, Denied)
    if request.url.path.startswith(api.PREFIX):
        return api.problem(error.status, str(error))
    return PlainTextResponse(f"{error}\n", error.status)


def _routes(console: Console) -> list[Route | Mount]:
    routes: list[Route | Mount] = [*api.routes(console)]
    if console.settings.pages:
        static = str(resources.files("skylark.console") / "static")
        routes.append(Mount("/static", StaticFiles(directory=static)))
        first = next(iter(console.settings.clusters))

        async def home(_: Request) -> Response:
            return RedirectResponse(f"/{first}/")

        routes.append(Route("/", home))
        routes.append(Route("/login", access.login(console), methods=["GET", "POST"]))
        routes.append(Route("/logout", access.logout(console), methods=["POST"]))
        routes.append(Route("/{cluster}/topics/{topic}/tail", _answering(console, messages.tail, "html")))
        for path, page in PAGES:
            for suffix in SUFFIXES:
                routes.append(
                    Route(f"/{{cluster}}/{path or 'overview'}.{suffix}", _answering(console, page, suffix))
                )
            routes.append(Route(f"/{{cluster}}/{path}", _answering(console, page, "html"), methods=["GET"]))
        if not console.settings.read_only:
            for method, table in (("GET", CHANGE_PAGES), ("POST", FORMS)):
                routes += [
                    Route(f"/{{cluster}}/{path}", _answering(console, form, "html"), methods=[method])
                    for path, form in table
                ]
    return routes


def _answering(console: Console, page: Page, suffix: str) -> Callable[[Request], Awaitable[Response]]:
    """A page as an endpoint: errors of the servers become pages, too."""

    async def endpoint(request: Request) -> Response:
        alias = str(request.path_params["cluster"])
        try:
            connection = await console.connections.get(alias, request.state.visitor.credentials)
        except KeyError:
            known = ", ".join(console.settings.clusters)
            return PlainTextResponse(f"no cluster {alias}; known clusters: {known}\n", 404)
        except WrongCredentials:
            return RedirectResponse(f"/login?next={quote(request.url.path, safe='')}", 303)
        except RocketMQError as error:
            return PlainTextResponse(f"{error}\n", 502)
        ask = Ask(console, request, connection)
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                found = await page(ask)
            return rendered(ask, found, suffix) if isinstance(found, PageView) else found
        except NoRoute as error:
            found = _sorry(ask, "failed.missing", str(error), 404)
        except NotThere as error:
            found = _sorry(ask, "failed.missing", str(error), 404)
        except BadForm as error:
            found = _sorry(ask, "failed.invalid", str(error), 400)
        except TimeoutError:
            found = _sorry(ask, "failed.unreachable", ask.t("failed.timeout", seconds=PAGE_TIMEOUT_S), 504)
        except RocketMQError as error:
            found = failed(ask, error)
        return rendered(ask, found, "html" if suffix == "csv" else suffix)

    return endpoint


def _sorry(ask: Ask, title: str, sentence: str, status: int) -> PageView:
    return PageView(
        template="failed.html",
        nav="",
        title=ask.t(title),
        data={"error": sentence, "hint": ""},
        document={"error": sentence},
        status=status,
    )


class ImpatientProtocol(H11Protocol):
    """Ends connections whose next request head is not complete in time: they would use up CONNECTIONS_MAX."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)


async def serve(settings: ConsoleSettings, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` gets the address. Raises SettingsError, OSError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family) as listener:
        config = uvicorn.Config(
            application(settings),
            http=ImpatientProtocol,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        )
        on_ready(link(settings, listener.getsockname()[1]))
        await uvicorn.Server(config).serve(sockets=[listener])


def link(settings: ConsoleSettings, port: int) -> str:
    """The address to open, with the token if there is one."""
    if settings.public_url:
        base = settings.public_url.rstrip("/")
    else:
        host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
        base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"{base}/?token={settings.token}" if settings.token else f"{base}/"
