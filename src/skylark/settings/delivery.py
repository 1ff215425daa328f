"""Settings of what a broker delivers late or only after a question: transactions and timed messages."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.settings.fields import check_ranges, setting


@dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """When producers are asked what became of their transactions, and how often."""

    reject: bool = setting(False, "rejectTransactionMessage", live=True)
    timeout_ms: int = setting(6000, "transactionTimeOut", 0, live=True)
    check_interval_ms: int = setting(30_000, "transactionCheckInterval", 1, live=True)
    check_max: int = setting(15, "transactionCheckMax", 1, live=True)
    open_max: int = setting(100_000, "transactionOpenMax", 1, live=True)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TimerSettings:
    """How exactly and how far ahead messages can be timed."""

    enabled: bool = setting(True, "timerWheelEnable")
    precision_ms: int = setting(1000, "timerPrecisionMs", 100, 1000)
    max_delay_s: int = setting(259_200, "timerMaxDelaySec", 1, 7 * 86_400, live=True)
    roll_window_slots: int = setting(172_800, "timerRollWindowSlot", 2, 604_800)
    slot_messages_max: int = setting((1 << 31) - 1, "timerCongestNumEachSlot", 1, (1 << 31) - 1, live=True)
    log_file_bytes: int = setting(100 << 20, "mappedFileSizeTimerLog", 5200)
    recall: bool = setting(True, "recallMessageEnable", live=True)

    def __post_init__(self) -> None:
        check_ranges(self)
