"""Pure. Users, resources and access control lists, and which entry of a list decides about an access."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from skylark.model.message import RETRY_TOPIC_PREFIX

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class User:
    """An account. A super user may do everything."""

    name: str
    secret: str = field(repr=False)
    is_super: bool = False
    is_enabled: bool = True


class Action(Enum):
    """What an entry allows or denies. `ALL` stands for all others."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceKind(Enum):
    """What a resource is. `ANY` in an entry matches all kinds."""

    ANY = "*"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(Enum):
    """How the name of an entry is compared. The values order entries: the most specific decides."""

    LITERAL = 0
    PREFIX = 1
    ANY = 2


_KINDS = {kind.value.lower(): kind for kind in ResourceKind}
_ACTIONS = {action.value.lower(): action for action in Action}


@dataclass(frozen=True)
class Resource:
    """`Topic:orders`, `Topic:order*`, `Topic:*` or `*`."""

    kind: ResourceKind
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, text: str) -> Resource | None:
        """Parse a resource; None if the text is none. The text before the first `*` is the prefix."""
        if text == ResourceKind.ANY.value:
            return cls(ResourceKind.ANY, pattern=Pattern.ANY)
        word, colon, name = text.partition(":")
        kind = _KINDS.get(word.lower())
        if kind is None or kind is ResourceKind.ANY or not colon or not name:
            return None
        if kind is ResourceKind.GROUP:
            name = name.removeprefix(RETRY_TOPIC_PREFIX)
        prefix, star, _ = name.partition("*")
        if not star:
            return cls(kind, name)
        return cls(kind, prefix, Pattern.PREFIX) if prefix else cls(kind, pattern=Pattern.ANY)

    def __str__(self) -> str:
        if self.kind is ResourceKind.ANY:
            return "*"
        return f"{self.kind.value}:{self.name}{'' if self.pattern is Pattern.LITERAL else '*'}"

    def matches(self, wanted: Resource) -> bool:
        """Return whether this resource of an entry covers a literal one."""
        if self.kind is ResourceKind.ANY:
            return True
        if self.kind is not wanted.kind:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == wanted.name
        return wanted.name.startswith(self.name)


def topic(name: str) -> Resource:
    """Return the resource of a topic; a retry topic belongs to its group."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return group(name)
    return Resource(ResourceKind.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceKind.GROUP, name.removeprefix(RETRY_TOPIC_PREFIX))


def cluster(name: str) -> Resource:
    return Resource(ResourceKind.CLUSTER, name)


@dataclass(frozen=True)
class NeededAccess:
    """What a request does: any one of the actions on a resource is enough."""

    resource: Resource
    actions: frozenset[Action]

    @property
    def action_words(self) -> str:
        return "|".join(sorted(action.value for action in self.actions))


@dataclass(frozen=True)
class AclEntry:
    """A rule of a user: some actions on a resource, from some addresses or any, are allowed or denied."""

    resource: Resource
    actions: frozenset[Action]
    is_allowed: bool
    sources: tuple[str, ...] = ()
    networks: tuple[IpNetwork, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for a source that is neither an address nor a network."""
        networks = tuple(ipaddress.ip_network(source, strict=False) for source in self.sources)
        object.__setattr__(self, "networks", networks)

    @property
    def decision(self) -> str:
        return "Allow" if self.is_allowed else "Deny"

    def applies_to(self, access: NeededAccess, source: IpAddress) -> bool:
        if Action.ALL not in self.actions and self.actions.isdisjoint(access.actions):
            return False
        if not self.resource.matches(access.resource):
            return False
        return not self.networks or any(source in network for network in self.networks)

    @property
    def rank(self) -> tuple[bool, int, int, bool]:
        """Smaller ranks decide: typed before `*`, literal before prefix before any, Deny before Allow."""
        resource = self.resource
        return resource.kind is ResourceKind.ANY, resource.pattern.value, -len(resource.name), self.is_allowed


@dataclass(frozen=True)
class Acl:
    """The rules of one user. The default ones count only where no custom one applies."""

    username: str
    custom: tuple[AclEntry, ...] = ()
    default: tuple[AclEntry, ...] = ()

    def deciding(self, access: NeededAccess, source: IpAddress) -> AclEntry | None:
        """Return the entry that decides about an access; None if no entry applies, which denies it."""
        for entries in (self.custom, self.default):
            applying = [entry for entry in entries if entry.applies_to(access, source)]
            if applying:
                return min(applying, key=lambda entry: entry.rank)
        return None

    def entries(self) -> Iterator[AclEntry]:
        yield from self.custom
        yield from self.default


def parse_actions(words: Iterable[str]) -> frozenset[Action]:
    """Return the known actions among words, as RocketMQ, which drops others silently."""
    return frozenset(_ACTIONS[word.lower()] for word in words if word.lower() in _ACTIONS)


def merged(entries: Iterable[AclEntry], changes: Iterable[AclEntry]) -> tuple[AclEntry, ...]:
    """Return entries in which those of the same resource are replaced."""
    by_resource = {entry.resource: entry for entry in entries}
    by_resource |= {entry.resource: entry for entry in changes}
    return tuple(by_resource.values())
