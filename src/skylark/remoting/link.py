"""Link: the common part of both ends of an asyncio connection.

Matches replies to pending requests, dispatches incoming requests, and coalesces writes: everything written
while one read is handled, or in one loop iteration, leaves in one system call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar, cast

from skylark.errors import BrokerError, ConnectionLost, LocalProtocolError, RequestTimeout, RocketMQError
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import CLIENT_LANGUAGE, Buffer, RemotingCommand, encode
from skylark.protocol.connection import Command, Connection, Limits
from skylark.protocol.frame_templates import plain_reply
from skylark.protocol.request import Request

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = RemotingCommand | None
# A handler returns the reply, None (no reply, or a later one), or a coroutine of either. Exceptions become
# replies: a BrokerError with its own code, everything else SYSTEM_ERROR.
Handler = Callable[[Any, RemotingCommand], Answer | Awaitable[Answer]]

_JOINED_PART_BYTES_MAX = 4096  # of the parts on average: copying more costs more than a vectored write
_AT_ONCE_BYTES = 512 << 10  # flush immediately: the bytes are still in the CPU cache
_REMARK_CHARS_MAX = 1_000


class ReplyWaiter(Protocol):
    """Receives a reply or an error: a future, or an object with the same three methods."""

    def done(self) -> bool: ...

    def set_result(self, reply: RemotingCommand, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class Link(asyncio.Protocol):
    """One end of a connection. `address` is the peer's.

    Tasks that handle requests are kept in `tasks`, which the owner of the link awaits on close.
    """

    language = CLIENT_LANGUAGE

    def __init__(
        self,
        limits: Limits,
        *,
        tasks: set[asyncio.Task[None]],
        requests_in_flight_max: int,
        write_high_water_bytes: int,
        typed: bool = False,
    ) -> None:
        self.address = ""
        self._loop = asyncio.get_running_loop()
        self._codec: Connection[ReplyWaiter] = Connection(limits, typed=typed)
        self._transport: asyncio.Transport | None = None
        self._tasks = tasks
        self._requests_in_flight_max = requests_in_flight_max
        self._requests_in_flight = 0
        self._write_high_water_bytes = write_high_water_bytes
        self._at_once_bytes = min(_AT_ONCE_BYTES, write_high_water_bytes)
        self._early_bytes = range(0)
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._gathering = False
        self._flush_scheduled = False
        self._encode_request: Callable[[RemotingCommand], list[Buffer]] = encode
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()

    # --- For the owner ---

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """False while the write buffer is above its high-water mark."""
        return self._writable.is_set()

    def write(self, *parts: Buffer) -> None:
        """Send frames or parts of a frame. Does nothing on a closed connection."""
        self.write_parts(parts, sum(map(len, parts)))

    def write_parts(self, parts: Iterable[Buffer], parts_bytes: int) -> None:
        """Send parts of known total length."""
        self._out += parts
        self._out_bytes += parts_bytes
        if self._out_bytes >= self._at_once_bytes or self._out_bytes in self._early_bytes:
            self._flush()
        elif not self._gathering and not self._flush_scheduled:
            self._flush_scheduled = True
            self._schedule_flush()

    def reply(self, answer: RemotingCommand) -> None:
        """Send a reply built by `command.reply(…)`."""
        self.write(*encode(answer))

    def notify(self, request: Request[Any]) -> None:
        """Send a oneway request."""
        command = request.to_command(oneway=True)
        command.language = self.language
        self.write(*self._encode_request(command))

    async def call(self, request: Request[T], *, timeout_s: float) -> T:
        """Send a request and return the parsed reply.

        Raises BrokerError, RequestTimeout, ConnectionLost, RemoteProtocolError, LocalProtocolError.
        """
        if self.is_closed:
            raise ConnectionLost(self.address, "already closed")
        waiter: asyncio.Future[RemotingCommand] = self._loop.create_future()
        opaque = self._codec.reserve_opaque(waiter)
        deadline = self._loop.time() + timeout_s
        expiry: asyncio.TimerHandle | None = None  # asyncio.timeout costs twice as much
        try:
            if not self.is_writable:
                async with asyncio.timeout_at(deadline):
                    await self.wait_writable()
            self.write(*self._frame(request, opaque))
            expiry = self._loop.call_at(deadline, _expire, waiter)
            reply = await waiter
        except TimeoutError:
            raise RequestTimeout(self.address, request.code.name, round(timeout_s * 1000)) from None
        finally:
            if expiry is not None:
                expiry.cancel()
            self._codec.take_waiter(opaque)
        return request.result(reply)

    def _frame(self, request: Request[Any], opaque: int) -> list[Buffer]:
        """Return the parts of a request's frame. Some requests have a faster way to one without signature."""
        if self._encode_request is encode and self.language == CLIENT_LANGUAGE:
            return request.frame(opaque)
        command = request.to_command()
        command.language = self.language
        command.opaque = opaque
        return self._encode_request(command)

    async def wait_writable(self) -> None:
        """Wait until the write buffer has drained."""
        await self._writable.wait()

    def close(self) -> None:
        """Flush, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close immediately, dropping unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await self._lost.wait()

    # --- For the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._write_high_water_bytes)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._out.clear()
        self._writable.set()  # release writers: peer closed
        self._lost.set()
        reason = str(exc) if exc else str(self._codec.failure or "closed")
        for waiter in self._codec.take_all_waiters():
            if not waiter.done():
                waiter.set_exception(ConnectionLost(self.address, reason))

    # --- Answering ---

    def _deliver(self, reply: RemotingCommand) -> None:
        """Pass a reply to its waiter. A reply without a waiter is late or unsolicited and dropped."""
        waiter = self._codec.take_waiter(reply.opaque)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def _serve(self, handler: Handler | None, command: Command) -> None:
        """Handle a request, immediately or in a task."""
        if handler is None:
            remark = f" request type {command.code} not supported"
            self._answer(command, command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        if self._is_full():
            remark = f"[OVERLOAD]too many requests in flight, {self._requests_in_flight} on this connection"
            self._answer(command, command.reply(ResponseCode.SYSTEM_BUSY, remark))
            return
        assert isinstance(command, RemotingCommand)
        try:
            answer = handler(self, command)
        except Exception as error:  # noqa: BLE001 (becomes the reply; unexpected errors are logged)
            answer = error_reply(command, error)
        if answer is None or isinstance(answer, RemotingCommand):
            self._answer(command, answer)
        else:
            task = self._loop.create_task(self._answer_later(command, answer))
            self._tasks.add(task)
            self._count_request(1, command)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._count_request(-1, command))

    def _is_full(self) -> bool:
        return self._requests_in_flight >= self._requests_in_flight_max

    def _count_request(self, change: int, command: RemotingCommand) -> None:
        """Count a request that starts (+1) or ends (-1) in a task."""
        self._requests_in_flight += change

    async def _answer_later(self, command: RemotingCommand, answer: Awaitable[Answer]) -> None:
        try:
            self._answer(command, await answer)
        except Exception as error:  # noqa: BLE001 (as above)
            self._answer(command, error_reply(command, error))

    def _answer(self, command: Command, answer: Answer) -> None:
        if answer is None or command.is_oneway:
            return
        try:
            self.reply(answer)
        except LocalProtocolError:
            log.exception("cannot encode reply code=%d", command.code)
            self.write(plain_reply(command.opaque, ResponseCode.SYSTEM_ERROR, "cannot encode the reply"))

    def _schedule_flush(self) -> None:
        """Schedule `_flush` for the next loop iteration."""
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._out:
            return
        parts, out_bytes = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if self._transport is None or self._transport.is_closing():
            return
        if out_bytes < _JOINED_PART_BYTES_MAX * len(parts):
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)


def _expire(waiter: asyncio.Future[RemotingCommand]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


def error_reply(command: Command, error: Exception) -> RemotingCommand:
    """Return the reply for an exception. Exceptions that are not a RocketMQError are logged."""
    if isinstance(error, BrokerError):
        return command.reply(error.code, error.remark)
    if isinstance(error, RocketMQError):
        return command.reply(ResponseCode.SYSTEM_ERROR, str(error)[:_REMARK_CHARS_MAX])
    log.error("handler failed code=%d", command.code, exc_info=error)
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return command.reply(ResponseCode.SYSTEM_ERROR, text[:_REMARK_CHARS_MAX])


def stop_listening(server: asyncio.Server) -> None:
    """Stop accepting connections and release the port in the next loop iteration. Idempotent.

    Closing immediately would leak connections accepted in this iteration: asyncio cannot attach them to a
    closed server and leaves them open until the garbage collector runs.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    loop.call_soon(server.close)
