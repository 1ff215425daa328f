"""Pure. BrokerGroup: what a controller knows about the brokers of one name; one JSON document per name."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct, field

from skylark.errors import BrokerError
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.controller import GroupMaster

FORMAT_VERSION = 1
FIRST_ID = 1


class ControllerRefusal(BrokerError):
    """A request that the rules of the group forbid; becomes the reply."""

    @classmethod
    def of(cls, code: ResponseCode, remark: str) -> "ControllerRefusal":
        return cls(code, remark)


class Replica(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One broker of a name. The check code tells who was given the id.

    A learner is never a member of the set. An unclean replica is the last member of the set and may have lost
    the end of its log.
    """

    address: str
    check_code: str
    is_learner: bool = field(default=False, name="learner")
    is_unclean: bool = field(default=False, name="unclean")


class BrokerGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """The brokers of one name. Epochs only grow; a master is always a member of the set."""

    version: int = field(default=FORMAT_VERSION, name="v")
    cluster: str
    name: str
    master_epoch: int = 0
    master: int | None = None
    set_epoch: int = 0
    members: frozenset[int] = field(default=frozenset(), name="set")
    next_id: int = FIRST_ID
    replicas: dict[int, Replica]

    @property
    def sync_state_set(self) -> SyncStateSet:
        return SyncStateSet.of(self.members, self.set_epoch)

    @property
    def master_address(self) -> str | None:
        replica = None if self.master is None else self.replicas.get(self.master)
        return None if replica is None else replica.address

    @property
    def current(self) -> GroupMaster:
        return GroupMaster(self.master, self.master_address, self.master_epoch, self.sync_state_set)

    def with_master(self, master: int | None, *, epoch_min: int = 0) -> "BrokerGroup":
        """Return the group with another master, alone in the set, or with none and the same set."""
        epoch = max(self.master_epoch + 1, epoch_min)
        if master is None:
            return msgspec.structs.replace(self, master=None, master_epoch=epoch)
        replica = msgspec.structs.replace(self.replicas[master], is_unclean=False)
        group = msgspec.structs.replace(
            self, master=master, master_epoch=epoch, replicas={**self.replicas, master: replica}
        )
        return group.with_members({master})

    def with_members(self, members: Iterable[int]) -> "BrokerGroup":
        return msgspec.structs.replace(self, members=frozenset(members), set_epoch=self.set_epoch + 1)

    def with_replica(self, broker_id: int, replica: Replica) -> "BrokerGroup":
        return msgspec.structs.replace(self, replicas={**self.replicas, broker_id: replica})


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(BrokerGroup)


def encode_group(group: BrokerGroup) -> bytes:
    return _encoder.encode(group)


def decode_group(data: bytes) -> BrokerGroup:
    """Raises ValueError for what is not a document of this format."""
    group = _decoder.decode(data)
    if group.version != FORMAT_VERSION:
        raise ValueError(f"format {group.version} of group {group.name} is unknown; use a newer Skylark")
    return group
