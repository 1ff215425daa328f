"""A page before it is rendered, the request that asked for it, and its rendering as HTML, JSON or CSV."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import jinja2
import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from skylark import __version__
from skylark.admin.admin import AsyncAdmin
from skylark.console import drawings
from skylark.console.changes import Change, ChangeLog
from skylark.console.connections import ClusterConnection, Connections
from skylark.console.grid import LEVELS, Grid, Row, arranged, format_duration, shown
from skylark.console.guard import Guest, Logins
from skylark.console.settings import ConsoleSettings
from skylark.console.sql import SqlRunner
from skylark.console.texts import LANGUAGES, TEXTS
from skylark.console.watch import Look
from skylark.errors import BrokerError, RocketMQError

LANGUAGE_COOKIE = "skylark_lang"
NAVIGATION = (
    (
        "data",
        {
            "overview": "",
            "topics": "topics",
            "groups": "groups",
            "dead_letters": "dead-letters",
            "pipelines": "pipelines",
            "tables": "tables",
            "sql": "sql",
        },
    ),
    (
        "system",
        {
            "map": "map",
            "brokers": "brokers",
            "store": "store",
            "name_servers": "name-servers",
            "controllers": "controllers",
            "proxies": "proxies",
            "clients": "clients",
            "health": "health",
            "access": "access",
        },
    ),
    ("record", {"changes": "changes"}),
)
"""Parts, and in each the pages with their paths."""


@dataclass(frozen=True, kw_only=True)
class PageView:
    """What a page shows. `nav` marks the navigation, `code` shows the same with other means."""

    template: str
    nav: str
    title: str
    sentence: str = ""
    crumbs: tuple[tuple[str, str], ...] = ()
    tabs: tuple[tuple[str, str, bool], ...] = ()
    grids: tuple[Grid, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    document: Any = None
    """The JSON of the page; None: that of its tables."""
    code: tuple[tuple[str, str], ...] = ()
    failures: tuple[str, ...] = ()
    live_s: float | None = None
    status: int = 200


class NotThere(Exception):
    """A page that does not exist, with a sentence."""


class BadForm(Exception):
    """A form or parameter that cannot be used, with a sentence."""


class Console:
    """What all requests share. Owned by one event loop."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.connections = Connections(settings.clusters)
        self.logins = Logins()
        self.changes = ChangeLog(settings.state)
        self.sql = SqlRunner(settings)
        self.streams = 0
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("skylark.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(
            sparkline=drawings.sparkline,
            chart=drawings.chart,
            share_bar=drawings.share_bar,
            levels=LEVELS,
            version=__version__,
            navigation=NAVIGATION,
            languages=LANGUAGES,
        )
        self._templates.filters.update(shown=shown, duration=format_duration, json=_pretty)

    async def warm_up(self) -> None:
        """Do what the first look would wait for: read templates, and clusters unless users log in."""
        for alias in () if self.settings.login else self.settings.clusters:
            with contextlib.suppress(RocketMQError):  # pages say it
                await (await self.connections.get(alias)).watch.now()
        for name in self._templates.list_templates():
            self._templates.get_template(name)
            await asyncio.sleep(0)

    def render(self, name: str, **values: Any) -> str:
        return self._templates.get_template(name).render(**values)


class Ask:
    """One request to a page of a cluster."""

    def __init__(self, console: Console, request: Request, connection: ClusterConnection) -> None:
        self.console = console
        self.request = request
        self.connection = connection
        self.language = language_of(request)

    @property
    def admin(self) -> AsyncAdmin:
        return self.connection.admin

    @property
    def alias(self) -> str:
        return self.connection.alias

    @property
    def settings(self) -> ConsoleSettings:
        return self.console.settings

    @property
    def visitor(self) -> Guest:
        visitor: Guest = self.request.state.visitor
        return visitor

    def path(self, name: str) -> str:
        """A part of the address, such as the topic."""
        return str(self.request.path_params[name])

    def arg(self, name: str, fallback: str = "") -> str:
        return str(self.request.query_params.get(name, fallback)).strip()

    def number(self, name: str, fallback: int) -> int:
        text = self.arg(name)
        if not text:
            return fallback
        if not text.lstrip("-").isdecimal():
            raise BadForm(f"invalid {name} {text!r}; pass a number")
        return int(text)

    async def form(self) -> dict[str, str]:
        """The fields of a form that was sent; of a repeated one all values, one per line."""
        body = (await self.request.body()).decode(errors="replace")
        fields = parse_qs(body, keep_blank_values=True, max_num_fields=2000)
        return {name: "\n".join(values) for name, values in fields.items()}

    async def look(self) -> Look:
        return await self.connection.watch.now()

    def href(self, *parts: object, **query: object) -> str:
        """The address of a page of this cluster."""
        path = "/".join(quote(str(part), safe="") for part in (self.alias, *parts))
        asked = {name: value for name, value in query.items() if value not in (None, "")}
        return f"/{path}{'' if parts else '/'}" + (f"?{urlencode(asked)}" if asked else "")

    def here(self, **query: object) -> str:
        """The address of this page with other parameters."""
        asked = {**dict(self.request.query_params), **query}
        asked = {name: value for name, value in asked.items() if value not in (None, "")}
        return quote(self.request.url.path) + (f"?{urlencode(asked)}" if asked else "")

    def t(self, key: str, **values: object) -> str:
        return text_of(key, self.language, **values)

    def record(
        self,
        action: str,
        target: str,
        *,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> Change:
        """Write a change to the log; lists are asked for again."""
        self.connection.watch.forget()
        return self.console.changes.add(
            user=self.visitor.name,
            address=self.visitor.address,
            cluster=self.alias,
            action=action,
            target=target,
            before=before,
            after=after,
        )

    @property
    def texts(self) -> Mapping[str, tuple[str, str]]:
        return TEXTS

    def column(self, key: str) -> str:
        """The heading of a column; addresses of servers are headings, too."""
        return self.t(f"col.{key}") if f"col.{key}" in TEXTS else key

    @property
    def json_path(self) -> str:
        """This page as JSON."""
        return self._suffixed(".json")

    @property
    def csv_path(self) -> str:
        """The first table of this page as CSV."""
        return self._suffixed(".csv")

    @property
    def tail_path(self) -> str:
        """The stream of new messages with the filters of this page."""
        url = self.request.url
        return quote(url.path.removesuffix("messages") + "tail") + (f"?{url.query}" if url.query else "")

    def _suffixed(self, suffix: str) -> str:
        url = self.request.url
        path = quote(url.path if not url.path.endswith("/") else f"{url.path}overview")
        return f"{path}{suffix}" + (f"?{url.query}" if url.query else "")

    def arranged(self, grid: Grid, *in_columns: str) -> Grid:
        """With the filter, the order and the page that the address asks for."""
        return arranged(
            grid,
            text=self.arg("q"),
            sort=self.arg("sort", grid.sort),
            page=self.number("page", 1),
            in_columns=in_columns,
        )


async def list_page(
    ask: Ask,
    name: str,
    grid: Grid,
    *,
    search: tuple[str, ...] = (),
    fill: Callable[[Sequence[Row]], Awaitable[Sequence[Row]]] | None = None,
    sentence: Mapping[str, object] | None = None,
    **more: Any,
) -> PageView:
    """The page of a list: a table with filter, order and pages.

    `fill` completes the rows on screen with what costs requests. `sentence` are the values of the text
    `NAME.sentence` besides the count. `more` are fields of PageView.
    """
    found = ask.arranged(grid, *search)
    if fill is not None:
        found = replace(found, rows=await fill(found.rows))
    data = {**LIST, **more.pop("data", {})}
    words = ask.t(f"{name}.sentence", count=f"{found.total or 0:,}", **(sentence or {}))
    title = more.pop("title", "") or ask.t(name)
    view = {"nav": name, "title": title, "sentence": words, **more}
    return PageView(template="list.html", grids=(found,), data=data, **view)


LIST: Mapping[str, Any] = {"switches": [], "empty": "", "action": None}
"""What `list.html` needs of a page without switches, command and button."""


@dataclass(frozen=True)
class PageSection:
    """Things of one kind: the address of their list, and the views of each, by name, with their paths."""

    name: str
    views: Mapping[str, str]
    first: str = ""
    """The view that a link to a thing opens."""

    def tabs(self, ask: Ask, thing: str, chosen: str) -> tuple[tuple[str, str, bool], ...]:
        return tuple(
            (ask.t(f"tab.{view}"), self.href(ask, thing, path), view == chosen)
            for view, path in self.views.items()
        )

    def crumbs(self, ask: Ask, thing: str) -> tuple[tuple[str, str], ...]:
        return (ask.t(self.name), ask.href(self.name)), (thing, self.href(ask, thing, self.first))

    def href(self, ask: Ask, thing: str, path: str) -> str:
        return ask.href(self.name, thing, path) if path else ask.href(self.name, thing)


Page = Callable[[Ask], Awaitable[PageView | Response]]


def language_of(request: Request) -> str:
    """The choice of the reader, else of the browser."""
    chosen = request.query_params.get("lang") or request.cookies.get(LANGUAGE_COOKIE)
    if chosen in LANGUAGES:
        return str(chosen)
    for word in request.headers.get("accept-language", "").split(","):
        code = word.partition(";")[0].strip().lower()[:2]
        if code in LANGUAGES:
            return code
    return "en"


def text_of(key: str, language: str, **values: object) -> str:
    """Raises KeyError for a text that does not exist."""
    text = TEXTS[key][0 if language == "en" else 1]
    return text.format(**values) if values else text


def document_of(view: PageView) -> Any:
    """What a page shows, as values of JSON."""
    if view.document is not None:
        return view.document
    document: dict[str, Any] = {grid.name: grid.document() for grid in view.grids}
    return {**document, "failures": list(view.failures)} if view.failures else document


def rendered(ask: Ask, view: PageView, suffix: str) -> Response:
    """The page in the form that the address asks for."""
    if suffix == "json":
        body = msgspec.json.encode(document_of(view), enc_hook=str)
        return Response(body, view.status, media_type="application/json")
    if suffix == "csv":
        wanted = ask.arg("table")
        grids = [grid for grid in view.grids if not wanted or grid.name == wanted]
        if not grids:
            raise NotThere("this page has no table")
        headers = {"content-disposition": f'attachment; filename="{view.nav}-{grids[0].name}.csv"'}
        return Response(grids[0].csv(), view.status, headers, media_type="text/csv; charset=utf-8")
    html = ask.console.render(
        view.template,
        view=view,
        ask=ask,
        t=ask.t,
        href=ask.href,
        change=ask.console.changes.get(ask.number("changed", 0)),
        **view.data,
    )
    response = HTMLResponse(html, view.status)
    _keep_language(ask.request, response)
    return response


def _keep_language(request: Request, response: Response) -> None:
    if request.query_params.get("lang") in LANGUAGES:
        response.set_cookie(
            LANGUAGE_COOKIE, str(request.query_params["lang"]), max_age=365 * 86_400, samesite="strict"
        )


def failed(ask: Ask, error: RocketMQError) -> PageView:
    """What a page shows if the servers refuse or do not answer: their own sentence."""
    is_refusal = isinstance(error, BrokerError)
    return PageView(
        template="failed.html",
        nav="",
        title=ask.t("failed.refused" if is_refusal else "failed.unreachable"),
        data={"error": str(error), "hint": error.hint},
        document={"error": str(error)},
        status=502,
    )


def redirect(address: str) -> Response:
    return RedirectResponse(address, 303)


def failures_of(failures: Mapping[str, RocketMQError]) -> tuple[str, ...]:
    return tuple(f"no answer from {address}: {error}" for address, error in failures.items())


def _pretty(value: Any) -> Markup | str:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
