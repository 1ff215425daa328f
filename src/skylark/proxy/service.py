"""The table of calls. Every failure becomes the status of a reply here; the status of gRPC stays OK."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from skylark.errors import RocketMQError
from skylark.proxy.access import CallGate
from skylark.proxy.call import (
    Call,
    CallShape,
    ClientGone,
    Method,
    Send,
    StreamFailed,
    StreamHandler,
    UnaryHandler,
)
from skylark.proxy.client_calls import ClientCalls
from skylark.proxy.proxy_metrics import CallCounts
from skylark.proxy.receive_calls import ReceiveCalls
from skylark.proxy.route_calls import RouteCalls
from skylark.proxy.schema import Code, v2
from skylark.proxy.send_calls import SendCalls
from skylark.proxy.status import CallRefused, refusal_of, status

log = logging.getLogger(__name__)

CLIENT_ERRORS = range(40_000, 50_000)


class Service:
    """Checks the client of each call, calls its handler, and turns errors into replies."""

    def __init__(
        self,
        routes: RouteCalls,
        sends: SendCalls,
        receives: ReceiveCalls,
        clients: ClientCalls,
        gate: CallGate | None,
        calls_max: int,
        counts: CallCounts,
    ) -> None:
        self._gate = gate
        self._counts = counts
        self._calls_max = calls_max
        self._calls = 0
        unary: dict[str, UnaryHandler] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "SendMessage": sends.send,
            "RecallMessage": sends.recall,
            "EndTransaction": sends.end_transaction,
            "AckMessage": receives.ack,
            "ChangeInvisibleDuration": receives.change_invisible,
            "ForwardMessageToDeadLetterQueue": receives.forward,
            "Heartbeat": clients.heartbeat,
            "NotifyClientTermination": clients.terminate,
            "SyncLiteSubscription": clients.sync_lite,
        }
        self.methods: Mapping[str, Method] = {
            **{name: self._unary(name, handler) for name, handler in unary.items()},
            "ReceiveMessage": self._stream("ReceiveMessage", receives.receive),
            "Telemetry": Method(
                CallShape.DUPLEX, v2.TelemetryCommand, v2.TelemetryCommand, self._duplex(clients.telemetry)
            ),
        }

    def _unary(self, name: str, handler: UnaryHandler) -> Method:
        request_type, reply_type = getattr(v2, f"{name}Request"), getattr(v2, f"{name}Response")

        def handle(call: Call, request: Any) -> Awaitable[Any]:
            try:
                self._enter(call, request)
            except Exception as error:  # noqa: BLE001 (becomes the reply)
                return refuse(call, error)
            try:
                reply = handler(call, request)
            except Exception as error:  # noqa: BLE001
                self._calls -= 1
                return refuse(call, error)
            if isinstance(reply, asyncio.Future):
                reply.add_done_callback(leave)
                return reply
            return finish(call, reply)

        def leave(reply: asyncio.Future[Any]) -> None:
            self._calls -= 1
            if not reply.cancelled() and reply.exception() is None:
                self._counts.ended[name, reply.result().status.code] += 1

        async def finish(call: Call, working: Awaitable[Any]) -> Any:
            try:
                reply = await working
            except Exception as error:  # noqa: BLE001
                return await refuse(call, error)
            finally:
                self._calls -= 1
            self._counts.ended[name, reply.status.code] += 1
            return reply

        async def refuse(call: Call, error: Exception) -> Any:
            refusal = self._refused(call, error)
            self._counts.ended[name, refusal.code] += 1
            return reply_type(status=status(refusal.code, refusal.message))

        return Method(CallShape.UNARY, request_type, reply_type, handle)

    def _stream(self, name: str, handler: StreamHandler) -> Method:
        request_type, reply_type = getattr(v2, f"{name}Request"), getattr(v2, f"{name}Response")

        async def handle(call: Call, request: Any, send: Send) -> None:
            async def counted(frame: Any) -> None:
                if not isinstance(frame, list) and frame.HasField("status"):
                    self._counts.ended[name, frame.status.code] += 1
                await send(frame)

            try:
                self._enter(call, request)
                try:
                    await handler(call, request, counted)
                finally:
                    self._calls -= 1
            except ClientGone:
                raise
            except Exception as error:  # noqa: BLE001 (becomes the reply)
                refusal = self._refused(call, error)
                await counted(reply_type(status=status(refusal.code, refusal.message)))

        return Method(CallShape.SERVER_STREAM, request_type, reply_type, handle)

    def _duplex(
        self, handler: Callable[[Call, AsyncIterator[Any], Send], Awaitable[None]]
    ) -> Callable[[Call, AsyncIterator[Any], Send], Awaitable[None]]:
        async def handle(call: Call, requests: AsyncIterator[Any], send: Send) -> None:
            async def admitted() -> AsyncIterator[Any]:
                async for request in requests:
                    self._admit(call, request)
                    yield request

            self._counts.streams += 1
            try:
                await handler(call, admitted(), send)
                self._counts.ended["Telemetry", Code.OK] += 1
            except ClientGone:
                raise
            except Exception as error:
                refusal = self._refused(call, error)
                self._counts.ended["Telemetry", refusal.code] += 1
                if refusal.code in (Code.UNAUTHORIZED, Code.CLIENT_ID_REQUIRED):
                    await send(v2.TelemetryCommand(status=status(refusal.code, refusal.message)))
                    return
                raise StreamFailed(
                    f"process client telemetryCommand failed. {refusal.message}",
                    is_argument=refusal.code in CLIENT_ERRORS,
                ) from error
            finally:
                self._counts.streams -= 1

        return handle

    def _enter(self, call: Call, request: Any) -> None:
        """Count a call that may be served. Raises CallRefused."""
        if self._calls >= self._calls_max:
            raise CallRefused(Code.TOO_MANY_REQUESTS, "flow limit")
        self._admit(call, request)
        self._calls += 1

    def _admit(self, call: Call, request: Any) -> None:
        """Raises CallRefused."""
        if not call.client_id:
            raise CallRefused(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if self._gate is not None:
            self._gate.admit(call, request)

    @staticmethod
    def _refused(call: Call, error: Exception) -> CallRefused:
        if not isinstance(error, RocketMQError):
            log.error("call failed method=%s client=%s", call.method, call.client_id, exc_info=error)
        return refusal_of(error)
