"""Pure. Namespaces: `ns%topic` on the wire, `topic` for the application."""

from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from skylark.model.names import SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

SEPARATOR = "%"
_DERIVED = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)


def with_namespace(namespace: str, name: str) -> str:
    """Prefix a topic or group (behind `%RETRY%`, `%DLQ%`) with the namespace, once; not system names."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, bare = _split(name)
    if bare.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{bare}"


def without_namespace(namespace: str, name: str) -> str:
    """Remove the namespace; names of other namespaces are returned unchanged."""
    prefix, bare = _split(name)
    if not namespace or not bare.startswith(namespace + SEPARATOR):
        return name
    return prefix + bare.removeprefix(namespace + SEPARATOR)


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX))


def _split(name: str) -> tuple[str, str]:
    for prefix in _DERIVED:
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name
