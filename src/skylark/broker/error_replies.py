"""Pure. Error replies with RocketMQ's codes and remarks, which its clients show to users."""

from skylark.errors import BrokerError
from skylark.protocol.codes import ResponseCode
from skylark.store.append_result import PutStatus

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

SLAVE_REMARK = "[REJECTREQUEST]system busy, start flow control for a while"
"""A slave's reply to requests for its master; clients try another broker."""


def system_error(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.SYSTEM_ERROR, remark)


def not_supported(code: int, reason: str) -> BrokerError:
    remark = f" request type {code} not supported: {reason}"
    return BrokerError.for_code(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def system_busy(remark: str = "[OVERLOAD]system busy, start flow control for a while") -> BrokerError:
    return BrokerError.for_code(ResponseCode.SYSTEM_BUSY, remark)


def invalid_parameter(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.INVALID_PARAMETER, remark)


def no_permission(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.NO_PERMISSION, remark)


def not_available(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)


def slave_not_available(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.SLAVE_NOT_AVAILABLE, remark)


def metadata_is_copied(master: str) -> BrokerError:
    """A slave's reply to changes of metadata: its next synchronization would undo them."""
    return system_error(f"a slave takes topics, groups and offsets from its master: ask {master}")


def messages_are_copied(_: str) -> BrokerError:
    """A slave's reply to new messages."""
    return system_busy(SLAVE_REMARK)


def transactions_are_copied(_: str) -> BrokerError:
    """A slave's reply to the end of a transaction."""
    return slave_not_available("a slave ends no transactions, ask its master")


def illegal(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.MESSAGE_ILLEGAL, remark)


def illegal_operation(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.ILLEGAL_OPERATION, remark)


def topic_not_exist(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.TOPIC_NOT_EXIST, remark)


def group_not_exist(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)


def full(what: str, limit: int) -> BrokerError:
    """Refuse what would make a table larger than a setting allows."""
    return system_error(f"the broker takes no more than {limit} {what}")


def refusal_reply(status: PutStatus, reason: str, message_bytes_max: int) -> tuple[ResponseCode, str]:
    """Code and remark for a message that the store refused."""
    if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        return ResponseCode.MESSAGE_ILLEGAL, (
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {message_bytes_max}B, msg properties length limit 32KB."
        )
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        return ResponseCode.SERVICE_NOT_AVAILABLE, (
            "service not available now. It may be caused by one of the following reasons: "
            "the broker's disk is full, messages are put to the slave, message store has been shut down: "
            + reason
        )
    if status is PutStatus.OS_PAGE_CACHE_BUSY:
        return ResponseCode.SYSTEM_BUSY, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken."
    return ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"
