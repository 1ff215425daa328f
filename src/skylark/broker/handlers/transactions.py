"""Transactions: their end (37), and new checks of one that was abandoned (323)."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from skylark.broker.error_replies import (
    illegal_operation,
    refusal_reply,
    system_error,
    transactions_are_copied,
)
from skylark.broker.handlers.served_requests import serves
from skylark.broker.replication.master import ReplicationMaster
from skylark.broker.transactions.coordinator import TransactionCoordinator
from skylark.broker.transactions.half_messages import HalfRecord
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.message_id import parse_offset_message_id
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import DECODE_ERRORS, LENGTH_BYTES, PREFIX, PREFIX_BYTES, TypedCommand
from skylark.protocol.connection import HEADER_START_BYTES, header_start
from skylark.protocol.frame_templates import plain_reply
from skylark.protocol.requests.transaction import COMMIT, ROLLBACK, EndTransaction, ResumeCheckHalfMessage
from skylark.remoting.latency import ONEWAY, RequestLatencies
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import PutStatus, Refused
from skylark.store.message_store import MessageStore

NOT_FOUND_REMARK = "Find prepared transaction message failed"
BUSY_REMARK = "OS page cache busy, please try another machine"


_START = header_start(RequestCode.END_TRANSACTION)
_decode = msgspec.json.Decoder(TypedCommand[EndTransaction], strict=False).decode


def _decode_ends(
    buffer: bytes | bytearray | memoryview,
) -> tuple[list[TypedCommand[EndTransaction]], list[int]]:
    """Decode the ends of transactions at the beginning of a buffer; return them, and the ends of frames."""
    commands: list[TypedCommand[EndTransaction]] = []
    ends: list[int] = []
    view, start = memoryview(buffer), 0
    while view[start + PREFIX_BYTES : start + PREFIX_BYTES + HEADER_START_BYTES] == _START:
        frame_bytes, header_bytes = PREFIX.unpack_from(view, start)
        end = start + LENGTH_BYTES + frame_bytes
        if end > len(view) or header_bytes != frame_bytes - LENGTH_BYTES:  # cut, binary, or with a body
            break
        try:
            command = _decode(view[start + PREFIX_BYTES : end])
        except DECODE_ERRORS:
            break
        if command.code != RequestCode.END_TRANSACTION or command.is_response:
            break
        commands.append(command)
        ends.append(end)
        start = end
    return commands, ends


@dataclass(frozen=True, slots=True, eq=False)
class TransactionHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    transactions: TransactionCoordinator
    replication: ReplicationMaster
    latencies: RequestLatencies

    def take_ends(
        self, peer: Peer, buffer: bytes | bytearray | memoryview, senders: dict[bytes, bytes] | None
    ) -> tuple[int, int]:
        """Handle the ends of recent transactions at the beginning of a read; return their bytes and number.

        Nothing is taken of clients that must sign, or if acknowledgements wait for the disk or for slaves.
        """
        if senders is not None or self.replication.delays_acks:
            return 0, 0
        commands, ends = _decode_ends(buffer)
        count = self.transactions.end_recent([command.request for command in commands])
        replies = [plain_reply(command.opaque) for command in commands[:count] if not command.is_oneway]
        code = RequestCode.END_TRANSACTION
        if replies:
            peer.write(*replies)
            self.latencies.count_successes(code, peer.active_at, len(replies))
        if oneways := count - len(replies):
            self.latencies.count(code, ResponseCode.SUCCESS, peer.active_at, oneways, result=ONEWAY)
        if count:
            self.store.announce()
        return (ends[count - 1] if count else 0), count

    @serves(EndTransaction, on_slave=transactions_are_copied)
    def end_transaction(self, request: EndTransaction) -> Coroutine[Any, Any, None] | None:
        """Commit or roll back. A producer that does not know the outcome yet is asked later."""
        if request.commit_or_rollback not in (COMMIT, ROLLBACK):
            return None
        if self.transactions.is_near(request.physical_offset):  # the usual case, without a task
            self._end(request, self.transactions.read_now(request.physical_offset))
            return None
        return self._end_later(request)

    async def _end_later(self, request: EndTransaction) -> None:
        self._end(request, await self.transactions.read(request.physical_offset))

    def _end(self, request: EndTransaction, record: HalfRecord | None) -> None:
        if record is None:
            raise system_error(NOT_FOUND_REMARK)
        self._check(request, record)
        if request.commit_or_rollback == ROLLBACK:
            self.transactions.roll_back(record)
            return
        refused = self.transactions.commit(record)
        if refused is not None:
            raise self._refusal(refused)

    def _check(self, request: EndTransaction, record: HalfRecord) -> None:
        """Raise BrokerError for a request that does not match the half message at its offset."""
        immunity_ms = record.immunity_ms
        if immunity_ms is not None and not request.from_transaction_check:
            age_ms = self.clock.now_ms() - record.born_ms
            if age_ms > max(immunity_ms, self.live.current.transactions.timeout_ms):
                raise illegal_operation("Message commit fail [checkImmunityTime]")
        if record.group != request.producer_group:
            raise system_error("The producer group wrong")
        if record.queue_offset != request.queue_offset:
            raise system_error("The transaction state table offset wrong")
        if record.physical_offset != request.physical_offset:
            raise system_error("The commit log offset wrong")
        if record.topic != names.HALF_TOPIC:
            raise system_error(NOT_FOUND_REMARK)

    def _refusal(self, refused: Refused) -> BrokerError:
        if refused.status is PutStatus.OS_PAGE_CACHE_BUSY:
            return system_error(BUSY_REMARK)
        code, remark = refusal_reply(refused.status, refused.reason, self.store.log.message_bytes_max)
        return BrokerError.for_code(code, remark)

    @serves(ResumeCheckHalfMessage)
    async def resume_check(self, request: ResumeCheckHalfMessage) -> None:
        """Reopen an abandoned transaction: it is checked again from the beginning."""
        try:
            physical_offset = parse_offset_message_id(request.msg_id or "")[1]
        except ValueError as error:
            raise system_error(f"invalid message id {request.msg_id!r}: {error}") from None
        record = await self.transactions.read(physical_offset)
        if record is None or record.topic not in (names.HALF_TOPIC, names.HALF_CHECKED_OUT_TOPIC):
            raise system_error(NOT_FOUND_REMARK)
        if isinstance(self.store.append([record.checked_again(0)])[0], Refused):
            raise system_error(f"Put message back to {names.HALF_TOPIC} failed.")
