"""Who may ask for what: host names, origins, tokens, logins, limits; and the headers of every response."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from skylark.console.settings import ConsoleSettings
from skylark.settings.credentials import Credentials

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "skylark_console"
LOGIN_S = 12 * 3600
LOGINS_MAX = 1000
REQUEST_BYTES_MAX = 5 << 20
"""A message of four MiB fits."""
BODY_S = 30.0
SAFE_METHODS = frozenset({"GET", "HEAD"})
OPEN_PATHS = ("/static/", "/login")
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
        b"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # without referrers, our own forms have no origin
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]


@dataclass(slots=True)
class Guest:
    """Who asks. `credentials` sign requests to the cluster; None: those of the console's process."""

    name: str
    address: str
    credentials: Credentials | None = field(default=None, repr=False)


class Logins:
    """People who are logged in, in memory only."""

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[float, str, Credentials | None]] = {}

    def add(self, name: str, credentials: Credentials | None) -> str:
        """Return the value of the cookie."""
        now_s = time.monotonic()
        self._by_key = {key: kept for key, kept in self._by_key.items() if kept[0] > now_s}
        while len(self._by_key) >= LOGINS_MAX:
            del self._by_key[next(iter(self._by_key))]
        key = secrets.token_urlsafe(32)
        self._by_key[key] = (now_s + LOGIN_S, name, credentials)
        return key

    def find(self, key: str) -> tuple[str, Credentials | None] | None:
        found = self._by_key.get(key)
        if found is None or found[0] <= time.monotonic():
            return None
        return found[1], found[2]

    def remove(self, key: str) -> None:
        self._by_key.pop(key, None)


class Denied(Exception):
    """The request is not passed on."""

    def __init__(self, status: int, reason: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or []


class Guard:
    """An ASGI application around another one, which finds the `Guest` in `scope["state"]["visitor"]`."""

    def __init__(self, app: App, settings: ConsoleSettings, logins: Logins) -> None:
        self._app = app
        self._settings = settings
        self._logins = logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [*HEADERS] if scope["path"].startswith("/static/") else [*HEADERS, _NO_STORE]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
            }
            self._check_host(headers)
            self._check_origin(scope["method"], headers)
            _check_size(int(headers.get("content-length") or 0))
            scope.setdefault("state", {})["visitor"] = self._visitor(scope, headers)
            await self._app(scope, _limited(receive), guarded_send)
        except Denied as refused:
            await _answer(guarded_send, refused, as_problem=scope["path"].startswith("/api/"))
        except ValueError:
            await _answer(guarded_send, Denied(400, "invalid header"), as_problem=False)

    def _check_host(self, headers: MutableMapping[str, str]) -> None:
        """Another name that resolves to this machine may be an attacker's (DNS rebinding)."""
        hosts = self._settings.hosts
        name = urlsplit(f"//{headers.get('host', '')}").hostname
        if hosts is not None and name not in hosts:
            raise Denied(
                421, f"this console does not answer to the name {name!r}; pass --public-url to allow it"
            )

    def _check_origin(self, method: str, headers: MutableMapping[str, str]) -> None:
        """A change must come from our own pages, or from a program, which sends neither header."""
        if method in SAFE_METHODS:
            return
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site is not None and site not in ("same-origin", "none"):
            raise Denied(403, f"the request comes from another site ({site})")
        if origin is not None and origin not in self._origins(headers):
            raise Denied(403, f"the request comes from another origin ({origin})")
        if site is None and origin is None and "cookie" in headers:
            raise Denied(403, "a request with a cookie must say its origin")

    def _origins(self, headers: MutableMapping[str, str]) -> set[str]:
        host = headers.get("host", "")
        return {f"http://{host}", f"https://{host}", self._settings.public_url.rstrip("/")}

    def _visitor(self, scope: Scope, headers: MutableMapping[str, str]) -> Guest:
        address = (scope.get("client") or ("", 0))[0]
        if not self._settings.needs_login:
            return Guest("", address)
        if scope["path"].startswith(OPEN_PATHS):
            return Guest("", address)
        if authorization := headers.get("authorization"):
            return self._authorized(authorization, address)
        if scope["path"].startswith("/api/"):
            wanted = b'Basic realm="skylark"' if self._settings.login else b"Bearer"
            raise Denied(401, "pass an Authorization header", [(b"www-authenticate", wanted)])
        found = self._logins.find(cookie_of(headers.get("cookie", "")))
        if found is None:
            asked = scope["path"] + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if (
                self._settings.token
                and given
                and hmac.compare_digest(given.encode(), self._settings.token.encode())
            ):
                key = self._logins.add("token", None)
                raise Denied(303, "", [(b"location", scope["path"].encode()), set_cookie(key)])
            raise Denied(303, "", [(b"location", f"/login?next={quote(asked, safe='')}".encode())])
        return Guest(found[0], address, found[1])

    def _authorized(self, authorization: str, address: str) -> Guest:
        scheme, _, value = authorization.partition(" ")
        if scheme.lower() == "bearer" and self._settings.token:
            if hmac.compare_digest(value.strip().encode(), self._settings.token.encode()):
                return Guest("token", address)
        elif scheme.lower() == "basic" and self._settings.login:
            try:
                name, _, secret = base64.b64decode(value, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                raise Denied(400, "invalid Authorization header") from None
            return Guest(name, address, Credentials(name, secret))
        raise Denied(401, "wrong credentials")


_NO_STORE = (b"cache-control", b"no-store")


def cookie_of(header: str) -> str:
    """The value of our cookie, empty without one."""
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def set_cookie(key: str, *, secure: bool = False, seconds: int = LOGIN_S) -> tuple[bytes, bytes]:
    more = "; Secure" if secure else ""
    return (
        b"set-cookie",
        f"{COOKIE}={key}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{more}".encode(),
    )


def _check_size(size: int) -> None:
    if size > REQUEST_BYTES_MAX:
        raise Denied(413, f"the request is larger than {REQUEST_BYTES_MAX} bytes")


def _limited(receive: Receive) -> Receive:
    """A body of unknown length is limited, too, and has BODY_S to arrive."""
    size, is_whole = 0, False
    deadline_s = asyncio.get_running_loop().time() + BODY_S

    async def count() -> MutableMapping[str, Any]:
        nonlocal size, is_whole
        try:
            async with asyncio.timeout_at(None if is_whole else deadline_s):
                message = await receive()
        except TimeoutError:
            raise Denied(408, f"the request did not arrive within {BODY_S:.0f} s") from None
        size += len(message.get("body", b""))
        is_whole = is_whole or not message.get("more_body")
        _check_size(size)
        return message

    return count


async def _answer(send: Send, refused: Denied, *, as_problem: bool) -> None:
    if as_problem:
        body = msgspec.json.encode({"title": str(refused), "status": refused.status})
        kind = b"application/problem+json"
    else:
        body, kind = f"{refused}\n".encode(), b"text/plain; charset=utf-8"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *refused.headers]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
