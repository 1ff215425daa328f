"""Replication links: byte streams with flow control. `protocol.ha` has their format."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import cast

from skylark.errors import ConnectFailed
from skylark.protocol.command import Buffer
from skylark.remoting.address import join_address, reason_of, split_address
from skylark.remoting.link import stop_listening
from skylark.remoting.tls import FirstByte, ServerTls
from skylark.remoting.tls_client import ClientTls, tls_arguments

log = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES = 1 << 20

OnBytes = Callable[["HaLink", bytes], None]
OnLost = Callable[["HaLink"], None]


class HaLink(asyncio.Protocol):
    """One end of a link. An exception from `on_bytes` closes the link and is kept in `failure`."""

    def __init__(
        self, on_bytes: OnBytes, on_open: OnLost | None = None, on_lost: OnLost | None = None
    ) -> None:
        self.address = ""
        self.read_at = 0.0
        self.written_at = 0.0
        self.failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._on_bytes = on_bytes
        self._on_open = on_open
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()
        self._paused = False

    # --- For the owner ---

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def write(self, *parts: Buffer) -> None:
        """Send; does nothing on a closed link. Await `wait_writable` between large writes."""
        if self.is_closed:
            return
        assert self._transport is not None
        self.written_at = self._loop.time()
        self._transport.writelines(parts)

    async def wait_writable(self) -> None:
        """Wait until the write buffer has drained or the link is lost."""
        await self._writable.wait()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    def pause_reading(self) -> None:
        if not self._paused and not self.is_closed:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self.is_closed:
            assert self._transport is not None
            self._paused = False
            self._transport.resume_reading()

    def abort(self, failure: Exception | None = None) -> None:
        """Close immediately, dropping unsent bytes."""
        self.failure = self.failure or failure
        if self._transport is not None:
            self._transport.abort()

    # --- For the loop ---

    def secure(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.address = join_address(str(peer[0]), peer[1])
        self.read_at = self.written_at = self._loop.time()
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.read_at = self._loop.time()
        try:
            self._on_bytes(self, data)
        except Exception as error:  # noqa: BLE001 (kept for the owner)
            self.abort(error)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = self.failure or exc
        self._writable.set()  # release writers: peer closed
        self._lost.set()
        if self._on_lost is not None:
            self._on_lost(self)


class HaListener:
    """Accepts links from slaves: by TLS if it is given, and plain ones from addresses that `allows_plain`.

    `on_refused` is called with the link and the reason.
    """

    def __init__(
        self,
        make_link: Callable[[], HaLink],
        tls: ServerTls | None,
        *,
        allows_plain: Callable[[str], bool],
        on_refused: Callable[[HaLink, str], None],
    ) -> None:
        self._make_link = make_link
        self._tls = tls
        self._allows_plain = allows_plain
        self._on_refused = on_refused
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listen and return the bound port; port 0 picks a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _accept(self) -> asyncio.Protocol:
        link = self._make_link()
        if self._tls is None:
            return link
        return FirstByte(
            link,
            self._tls,
            partial(self._on_refused, link),
            lambda: self._allows_plain(split_address(link.address)[0]),
        )

    def close(self) -> None:
        """Stop accepting links. Open links belong to their owner."""
        if self._server is not None:
            stop_listening(self._server)
            self._server = None


async def connect_ha(
    address: str, on_bytes: OnBytes, *, timeout_s: float, tls: ClientTls | None = None
) -> HaLink:
    """Open a link to a master. Raises ConnectFailed."""
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(timeout_s):
            more = {} if tls is None else tls_arguments(tls, host)
            _, link = await loop.create_connection(lambda: HaLink(on_bytes), host, port, **more)
    except TimeoutError:
        raise ConnectFailed(address, f"not within {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        raise ConnectFailed(address, reason_of(error)) from error
    return link
