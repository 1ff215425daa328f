"""Transactions: their end (37), and asking again about one that was given up (323)."""

from __future__ import annotations

from collections.abc import Awaitable

from skylark.broker.error_replies import illegal_operation, refusal_reply, slave_not_available, system_error
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.broker.transactions.half_messages import HalfRecord
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.record import parse_offset_message_id
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.transaction import COMMIT, ROLLBACK, EndTransaction, ResumeCheckHalfMessage
from skylark.remoting.server import Peer
from skylark.store.append_result import PutStatus, Refused

NOT_FOUND_REMARK = "Find prepared transaction message failed"
BUSY_REMARK = "OS page cache busy, please try another machine"


def end_transaction(
    broker: BrokerState, _: Peer, command: RemotingCommand
) -> RemotingCommand | Awaitable[RemotingCommand]:
    """Commit or roll back. Who does not know yet, and says so, will be asked."""
    request = EndTransaction.from_command(command)
    if broker.role.is_slave:
        raise slave_not_available("a slave ends no transactions, ask its master")
    if request.commit_or_rollback not in (COMMIT, ROLLBACK):
        return command.reply()
    if broker.transactions.is_near(request.physical_offset):  # as it nearly always is: no task is made for it
        return _end(broker, request, command, broker.transactions.read_now(request.physical_offset))
    return _end_later(broker, request, command)


async def _end_later(
    broker: BrokerState, request: EndTransaction, command: RemotingCommand
) -> RemotingCommand:
    return _end(broker, request, command, await broker.transactions.read(request.physical_offset))


def _end(
    broker: BrokerState, request: EndTransaction, command: RemotingCommand, record: HalfRecord | None
) -> RemotingCommand:
    if record is None:
        raise system_error(NOT_FOUND_REMARK)
    _check(broker, request, record)
    if request.commit_or_rollback == ROLLBACK:
        broker.transactions.roll_back(record)
        return command.reply()
    refused = broker.transactions.commit(record)
    if refused is not None:
        raise _refusal(broker, refused)
    return command.reply()


def _check(broker: BrokerState, request: EndTransaction, record: HalfRecord) -> None:
    """Raise BrokerError for an end that does not fit the half message at its place."""
    immunity_ms = record.immunity_ms
    if immunity_ms is not None and not request.from_transaction_check:
        age_ms = broker.clock.now_ms() - record.born_ms
        if age_ms > max(immunity_ms, broker.live.current.transactions.timeout_ms):
            raise illegal_operation("Message commit fail [checkImmunityTime]")
    if record.group != request.producer_group:
        raise system_error("The producer group wrong")
    if record.queue_offset != request.queue_offset:
        raise system_error("The transaction state table offset wrong")
    if record.physical_offset != request.physical_offset:
        raise system_error("The commit log offset wrong")
    if record.topic != names.HALF_TOPIC:
        raise system_error(NOT_FOUND_REMARK)


def _refusal(broker: BrokerState, refused: Refused) -> BrokerError:
    if refused.status is PutStatus.OS_PAGE_CACHE_BUSY:
        return system_error(BUSY_REMARK)
    code, remark = refusal_reply(refused.status, refused.reason, broker.store.log.message_bytes_max)
    return BrokerError.for_code(code, remark)


async def resume_check(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """Open a transaction again that was given up: it is asked about as if it were new."""
    request = ResumeCheckHalfMessage.from_command(command)
    try:
        physical_offset = parse_offset_message_id(request.msg_id or "")[1]
    except ValueError as error:
        raise system_error(f"{request.msg_id!r} is no message id: {error}") from None
    record = await broker.transactions.read(physical_offset)
    if record is None or record.topic not in (names.HALF_TOPIC, names.HALF_CHECKED_OUT_TOPIC):
        raise system_error(NOT_FOUND_REMARK)
    if isinstance(broker.store.append([record.checked_again(0)])[0], Refused):
        raise system_error(f"Put message back to {names.HALF_TOPIC} failed.")
    return command.reply()


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume_check,
}
