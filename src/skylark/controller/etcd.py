"""EtcdRegister: documents in etcd, for several controllers of which one leads. Speaks its JSON gateway.

The leader holds a key by a lease. The revision at which that key was created is the leader's token, and every
write requires it: a controller that was paused past its lease cannot write, whatever it believes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from skylark.controller.group import BrokerGroup, decode_group, encode_group
from skylark.controller.register import Leader, NotLeading, RegisterUnavailable, StaleGroup
from skylark.errors import SettingsError
from skylark.settings.controller import EtcdSettings
from skylark.settings.credentials import secret_text
from skylark.tasks import Tasks

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

STEP_DOWN_BEFORE_S = 0.5
"""A leader stops this long before its lease can expire."""
RENEWALS_PER_LEASE = 4
WATCH_AGAIN_S = 1.0
_STATUS_OK, _STATUS_UNAUTHORIZED = 200, 401
OLD_AUTH_STORE = "revision of auth store is old"
"""In etcd's answer after a change of its users: the token is older."""


def time_since_boot() -> float:
    """Return seconds that count while the machine is suspended, as the leases of etcd do."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


# --- The gateway ---


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class EtcdGateway:
    """Requests to etcd: the endpoint that answered last first, then the others."""

    def __init__(self, settings: EtcdSettings) -> None:
        """Raises SettingsError."""
        try:
            import httpx  # noqa: PLC0415 - optional
        except ImportError:
            raise SettingsError(
                "controllerType",
                "etcd needs httpx; install skylarkmq[controller], or use controllerType=file",
            ) from None
        self._endpoints = settings.addresses
        self._credentials = {"name": settings.user, "password": secret_text(settings.password)}
        self._token: dict[str, str] = {}
        """As a header; empty before the first request, and without users."""
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL, ValueError)
        self._client: httpx.AsyncClient = httpx.AsyncClient(
            timeout=settings.timeout_ms / 1000, verify=_context(settings), trust_env=False
        )

    async def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the first endpoint that gives one. Raises RegisterUnavailable.

        After a timeout the request may have been carried out, once or, by the next endpoint, twice.
        """
        failures = []
        for endpoint in list(self._endpoints):
            try:
                reply = await self._post(endpoint, path, body)
                if reply.status_code == _STATUS_OK:
                    answer: dict[str, Any] = reply.json()
                    return answer
                failures.append(f"{endpoint} {reply.status_code} {reply.text.strip()[:200]}")
            except self._errors as error:
                failures.append(f"{endpoint} {type(error).__name__} {error}".rstrip())
            self._endpoints.append(self._endpoints.pop(0))
        raise RegisterUnavailable(f"etcd does not answer: {'; '.join(failures)}")

    async def _post(self, endpoint: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """Post with a token, and once more with a new one if etcd does not know it any more."""
        if not self._credentials["name"]:
            return await self._client.post(endpoint + path, json=body)
        if self._token:
            reply = await self._client.post(endpoint + path, json=body, headers=self._token)
            if reply.status_code != _STATUS_UNAUTHORIZED and OLD_AUTH_STORE not in reply.text:
                return reply
        reply = await self._client.post(f"{endpoint}/v3/auth/authenticate", json=self._credentials)
        if reply.status_code != _STATUS_OK:
            return reply
        self._token = {"Authorization": reply.json()["token"]}
        return await self._client.post(endpoint + path, json=body, headers=self._token)

    async def watch(self, key: bytes, on_event: Callable[[], None]) -> None:
        """Call `on_event` for every change of a key, until the connection ends."""
        body = {"create_request": {"key": _base64(key)}}
        with contextlib.suppress(*self._errors):
            async with self._client.stream(
                "POST", f"{self._endpoints[0]}/v3/watch", json=body, headers=self._token, timeout=None
            ) as reply:
                async for line in reply.aiter_lines():
                    if "events" in json.loads(line or "{}").get("result", {}):
                        on_event()

    async def close(self) -> None:
        await self._client.aclose()


def _context(settings: EtcdSettings) -> ssl.SSLContext | bool:
    if settings.trusted is None and settings.certificate is None:
        return True
    try:
        context = ssl.create_default_context(cafile=settings.trusted)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError("etcdTrustedCa", f"cannot load the certificates for etcd: {error}") from error
    return context


# --- The register ---


class EtcdRegister:
    """Implements `Register`. Keys: `leader`, held by a lease, and `groups/NAME`."""

    def __init__(self, settings: EtcdSettings, *, now: Callable[[], float] = time_since_boot) -> None:
        """Raises SettingsError if httpx is not installed."""
        self.leader: Leader | None = None
        self._settings = settings
        self._now = now
        self._gateway = EtcdGateway(settings)
        self._tasks = Tasks()
        self._leader_key = f"{settings.prefix}leader".encode()
        self._groups_prefix = f"{settings.prefix}groups/".encode()
        self._me = Leader("", "")
        self._on_lead: Callable[[], None] = lambda: None
        self._wake = asyncio.Event()
        self._lease = "0"
        self._token: int | None = None
        self._deadline = 0.0
        self._is_exact = False
        self._groups: dict[str, BrokerGroup] = {}
        self._revisions: dict[str, int] = {}

    @property
    def is_leading(self) -> bool:
        return self._token is not None and self._is_exact and self._now() < self._deadline

    @property
    def groups(self) -> Mapping[str, BrokerGroup]:
        return self._groups

    async def start(self, me: Leader, on_lead: Callable[[], None]) -> None:
        self._me, self._on_lead = me, on_lead
        try:
            await self._step()
        except RegisterUnavailable as error:
            log.warning("register not reached, trying again reason=%s", error)
        self._tasks.spawn(self._step_forever(), "lead")
        self._tasks.spawn(self._watch_forever(), "watch leader")

    async def close(self) -> None:
        await self._tasks.close()
        if self._token is not None:
            self._token = None
            with contextlib.suppress(RegisterUnavailable):
                await self._gateway.call("/v3/lease/revoke", {"ID": self._lease})
        await self._gateway.close()

    # --- Leading ---

    async def _step_forever(self) -> None:
        failures = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.lease_s / RENEWALS_PER_LEASE):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._step()
                failures = 0
            except RegisterUnavailable as error:
                failures += 1
                if failures == 1:
                    log.warning("register not reached, trying again reason=%s", error)

    async def _watch_forever(self) -> None:
        while True:
            await self._gateway.watch(self._leader_key, self._wake.set)
            await asyncio.sleep(WATCH_AGAIN_S)

    async def _step(self) -> None:
        """Renew the lease, or try to lead if there is no leader. Raises RegisterUnavailable."""
        if self._token is not None:
            await self._renew()
        if self._token is None:
            await self._campaign()
        if self._token is not None and not self._is_exact:
            await self._read_groups()
            self._is_exact = True
            self._on_lead()

    async def _renew(self) -> None:
        sent_at = self._now()
        answer = await self._gateway.call("/v3/lease/keepalive", {"ID": self._lease})
        lasts_s = int(answer.get("result", {}).get("TTL", 0))
        if lasts_s:
            self._deadline = sent_at + lasts_s - STEP_DOWN_BEFORE_S
        else:
            self._step_down("the lease expired")

    async def _campaign(self) -> None:
        found = await self._gateway.call("/v3/kv/range", {"key": _base64(self._leader_key)})
        if found.get("kvs"):
            self.leader = _leader(found["kvs"][0])
            return
        self.leader = None
        sent_at = self._now()
        lease = await self._gateway.call("/v3/lease/grant", {"TTL": str(self._settings.lease_s)})
        put = {
            "key": _base64(self._leader_key),
            "value": _base64(msgspec.json.encode(self._me)),
            "lease": lease["ID"],
        }
        nobody_leads = _equal(self._leader_key, "CREATE", 0)
        answer = await self._gateway.call(
            "/v3/kv/txn", {"compare": [nobody_leads], "success": [{"request_put": put}]}
        )
        if not answer.get("succeeded"):
            await self._gateway.call("/v3/lease/revoke", {"ID": lease["ID"]})
            return
        self._lease = lease["ID"]
        self._token = int(answer["header"]["revision"])
        self._deadline = sent_at + int(lease["TTL"]) - STEP_DOWN_BEFORE_S
        self._is_exact = False
        self.leader = self._me

    def _step_down(self, reason: str) -> None:
        if self._token is not None:
            log.warning("controller no longer leads id=%s reason=%s", self._me.id, reason)
        self._token, self.leader = None, None
        self._is_exact = False
        self._wake.set()

    # --- Documents ---

    async def _read_groups(self) -> None:
        end = self._groups_prefix[:-1] + bytes([self._groups_prefix[-1] + 1])
        answer = await self._gateway.call(
            "/v3/kv/range", {"key": _base64(self._groups_prefix), "range_end": _base64(end)}
        )
        self._groups, self._revisions = {}, {}
        for item in answer.get("kvs", ()):
            self._keep(base64.b64decode(item["key"])[len(self._groups_prefix) :].decode(), item)

    def _keep(self, name: str, item: Mapping[str, Any] | None) -> None:
        if item is None:
            self._groups.pop(name, None)
            self._revisions.pop(name, None)
        else:
            self._groups[name] = decode_group(base64.b64decode(item["value"]))
            self._revisions[name] = int(item["mod_revision"])

    async def put(self, name: str, group: BrokerGroup | None) -> None:
        key = self._groups_prefix + name.encode()
        value = b"" if group is None else encode_group(group)
        write = (
            {"request_delete_range": {"key": _base64(key)}}
            if group is None
            else {"request_put": {"key": _base64(key), "value": _base64(value)}}
        )
        answer = await self._transaction(
            [_equal(key, "MOD", self._revisions.get(name, 0))],
            [write],
            [{"request_range": {"key": _base64(key)}}],
        )
        if answer.get("succeeded"):
            revision = answer["header"]["revision"]
            self._keep(name, None if group is None else {"value": _base64(value), "mod_revision": revision})
            return
        self._keep(name, _items(answer, 0))
        if self._groups.get(name) != group:
            raise StaleGroup(f"{name} was changed by another controller")
        # It was written by an earlier attempt whose answer was lost.

    async def confirm(self) -> None:
        await self._transaction([], [], [])

    async def _transaction(
        self, compare: list[Any], success: list[Any], failure: list[Any]
    ) -> dict[str, Any]:
        """Run a transaction under the leader's token. Raises NotLeading, RegisterUnavailable."""
        token = self._token
        if token is None or not self.is_leading:
            raise NotLeading("this controller does not lead")
        leads = _equal(self._leader_key, "CREATE", token)
        read_leader = {"request_range": {"key": _base64(self._leader_key)}}
        body = {"compare": [*compare, leads], "success": success, "failure": [*failure, read_leader]}
        try:
            answer = await self._gateway.call("/v3/kv/txn", body)
        except RegisterUnavailable:
            # The write may have happened: read everything again before the next answer.
            self._is_exact = False
            self._wake.set()
            raise
        if not answer.get("succeeded"):
            leader = _items(answer, len(failure))
            if leader is None or int(leader["create_revision"]) != token:
                self._step_down("another controller leads")
                raise NotLeading("another controller leads")
        return answer


def _equal(key: bytes, target: str, number: int) -> dict[str, str]:
    """Compare a revision of a key, 0 for a key that does not exist."""
    return {
        "key": _base64(key),
        "target": target,
        f"{target.lower()}_revision": str(number),
        "result": "EQUAL",
    }


def _items(answer: Mapping[str, Any], index: int) -> Mapping[str, Any] | None:
    """Return the key that a failed transaction read, None if it does not exist."""
    found = answer["responses"][index].get("response_range", {}).get("kvs")
    return found[0] if found else None


def _leader(item: Mapping[str, Any]) -> Leader | None:
    try:
        return msgspec.json.decode(base64.b64decode(item["value"]), type=Leader)
    except msgspec.DecodeError:
        return None
