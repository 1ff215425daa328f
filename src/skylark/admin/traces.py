"""Pure. Traces of messages, as RocketMQ's clients write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skylark.model.message import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

TRACE_KINDS = {"0": "normal", "1": "half", "2": "committed", "3": "delayed", "4": "ordered"}
TRACE_OUTCOMES = {"0": "success", "1": "timeout", "2": "exception", "3": "returned nothing", "4": "failed"}


@dataclass(frozen=True, slots=True)
class TraceStep:
    """An event of a message. `took_ms` is its duration, None if it is not recorded."""

    time_ms: int | None
    message_id: str
    what: str
    group: str
    is_ok: bool
    took_ms: int | None
    details: str


def read_steps(texts: Iterable[str]) -> list[TraceStep]:
    """The events in the bodies of trace messages, oldest first. Invalid records are skipped."""
    records = [
        record.split(NAME_VALUE_SEPARATOR)
        for text in texts
        for record in text.split(PROPERTY_SEPARATOR)
        if record
    ]
    # The end of a delivery does not always have a time: it follows from the start.
    begun = {
        (fields[4], fields[5]): fields for fields in records if fields[0] == "SubBefore" and len(fields) >= 8
    }
    steps: dict[TraceStep, None] = {}
    for fields in records:
        try:
            step = _step(fields, begun)
        except (ValueError, IndexError):
            continue
        if step is not None:
            steps[step] = None  # a trace may be sent twice
    return sorted(steps, key=lambda step: step.time_ms or 0)


def _step(fields: list[str], begun: dict[tuple[str, str], list[str]]) -> TraceStep | None:
    match fields[0]:
        case "Pub":
            kind = TRACE_KINDS.get(fields[11], fields[11])
            is_ok = fields[13] == "true" if len(fields) > 13 else fields[12] == "true"
            details = f"{kind}, {fields[9]} bytes to topic {fields[4]} at {fields[8]}"
            return TraceStep(int(fields[1]), fields[5], "sent", fields[3], is_ok, int(fields[10]), details)
        case "SubBefore":
            details = f"delivery {int(fields[6]) + 1}"
            return TraceStep(int(fields[1]), fields[5], "delivered", fields[3], True, None, details)
        case "SubAfter":
            before = begun.get((fields[1], fields[2]))
            took_ms = int(fields[3])
            time_ms = int(fields[7]) if len(fields) > 7 else None
            if time_ms is None and before is not None:
                time_ms = int(before[1]) + took_ms
            group = fields[8] if len(fields) > 8 else before[3] if before is not None else ""
            outcome = TRACE_OUTCOMES.get(fields[6], fields[6])
            return TraceStep(time_ms, fields[2], "consumed", group, fields[4] == "true", took_ms, outcome)
        case "EndTransaction":
            how = "after a check" if fields[12] == "true" else "by its producer"
            details = f"{fields[11]} {how}"
            return TraceStep(int(fields[1]), fields[5], "transaction ended", fields[3], True, None, details)
        case "Recall":
            details = f"from topic {fields[4]}"
            return TraceStep(
                int(fields[1]), fields[5], "recalled", fields[3], fields[6] == "true", None, details
            )
        case _:
            return None
