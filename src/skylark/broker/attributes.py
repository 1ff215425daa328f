"""Pure. Attributes of topics and groups, and changes to them: `+name=value` sets, `-name` deletes."""

from collections.abc import Mapping
from dataclasses import dataclass

from skylark.broker.refusals import invalid_parameter, system_error

ADD, DELETE = "+", "-"
MESSAGE_TYPE = "message.type"
MIXED = "MIXED"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that can be set to one of its values, and changed later only if it is changeable."""

    values: frozenset[str]
    changeable: bool = False


TOPIC_ATTRIBUTES = {
    "queue.type": Attribute(frozenset({"SimpleCQ", "BatchCQ"})),
    "cleanup.policy": Attribute(frozenset({"DELETE", "COMPACTION"})),
    MESSAGE_TYPE: Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED}), changeable=True
    ),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}
_RESERVE_TIME = "reserve.time"  # of a tiered store, which there is none of


def parse_changes(text: str | None) -> dict[str, str]:
    """Read changes such as `+message.type=FIFO,-queue.type`, signs kept. Raises BrokerError."""
    changes: dict[str, str] = {}
    for piece in text.split(",") if text else ():
        name, equals, value = piece.partition("=")
        if equals and (ADD not in name or not value):
            raise system_error(f"add/alter attribute format is wrong: {name}")
        if not equals and DELETE not in name:
            raise system_error(f"delete attribute format is wrong: {name}")
        if name in changes:
            raise system_error(f"key duplication: {name}")
        changes[name] = value
    return changes


def refuse_mixed(changes: Mapping[str, str]) -> None:
    """Raise BrokerError for a topic that shall take messages of all types."""
    if changes.get(ADD + MESSAGE_TYPE) == MIXED:
        raise invalid_parameter("MIXED message type is not supported.")


def altered(
    current: Mapping[str, str] | None, changes: Mapping[str, str], known: Mapping[str, Attribute]
) -> dict[str, str]:
    """Return the attributes after the changes. Raises BrokerError.

    `current` is None for what is being created.
    """
    attributes = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or ADD in name or DELETE in name:
            raise system_error("kv string format wrong.")
        if name in seen:
            raise system_error(f"alter duplication key. key: {name}")
        seen.add(name)
        if current is None and sign != ADD:
            raise system_error(f"only add attribute is supported while creating topic. key: {name}")
        if sign == DELETE and name not in attributes:
            raise system_error(f"attempt to delete a nonexistent key: {name}")
        if sign not in (ADD, DELETE):
            raise system_error(f"wrong format key: {name}")
        _check(name, value if sign == ADD else None, known, creating=current is None)
        if sign == ADD:
            attributes[name] = value
        else:
            del attributes[name]
    return attributes


def _check(name: str, value: str | None, known: Mapping[str, Attribute], *, creating: bool) -> None:
    if name == _RESERVE_TIME and known:
        raise system_error("Update topic reserveTime not supported")
    attribute = known.get(name)
    if attribute is None:
        raise system_error(f"unsupported key: {name}")
    if not creating and not attribute.changeable:
        raise system_error(f"attempt to update an unchangeable attribute. key: {name}")
    if value is not None and value not in attribute.values:
        raise system_error(f"value is not in set: [{', '.join(sorted(attribute.values))}]")
