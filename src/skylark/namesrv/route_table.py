"""Pure. The route table: live brokers, their topics, and the checks of what brokers register.

Time is an argument, in seconds of a monotonic clock. Invalid requests raise the BrokerError that answers
them and change nothing. Replies share values with the table: do not modify them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from skylark.errors import BrokerError, RemoteProtocolError
from skylark.protocol.bodies import (
    MASTER_ID,
    PERM_READ_WRITE,
    PERM_WRITE,
    Body,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Int32, Int64
from skylark.protocol.requests.name_server import RegisterBroker, RegisterBrokerReply
from skylark.remoting.address import split_address
from skylark.settings import NameServerSettings

NAME_CHARS_MAX = 255
PERM_MAX = 15
BROKER_TIMEOUT_MS_MAX = 3_600_000


class QueueMapping(Body):
    """Which queues of a static topic lie on one broker: logical queue id to queue id there."""

    topic: str | None = None
    scope: str | None = None
    total_queues: Int32 = 0
    bname: str | None = None
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[Int32, Int32] = msgspec.field(default_factory=dict)


def queue_mappings(table: TopicConfigTable) -> dict[str, QueueMapping]:
    """Return the mappings of static topics. Raises RemoteProtocolError."""
    infos = table.topic_queue_mapping_info_map or {}
    try:
        return msgspec.convert(infos, dict[str, QueueMapping], strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"queue mappings: {error}") from None


def check_form(
    request: RegisterBroker,
    body: RegisterBrokerBody,
    mappings: dict[str, QueueMapping],
    settings: NameServerSettings,
) -> None:
    """Raise BrokerError for an invalid registration."""
    _check_name("cluster", request.cluster_name)
    _check_name("broker", request.broker_name)
    _check_name("replication address", request.ha_server_addr)
    _check_address(request.broker_addr)
    if request.broker_id < 0:
        raise refused(f"broker id {request.broker_id} is negative")
    timeout_ms = request.heartbeat_timeout_ms
    if timeout_ms is not None and not 0 < timeout_ms <= BROKER_TIMEOUT_MS_MAX:
        raise refused(f"heartbeat timeout of {timeout_ms} ms is not within 1 to {BROKER_TIMEOUT_MS_MAX}")
    if len(body.filter_server_list) > settings.filter_servers_max:
        raise full("filter servers", settings.filter_servers_max)
    for server in body.filter_server_list:
        _check_name("filter server", server)
    queues_max = settings.topic_queues_max
    for config in body.topic_config_serialize_wrapper.topic_config_table.values():
        check_topic(
            config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm, queues_max
        )
    if any(len(mapping.curr_id_map) > queues_max for mapping in mappings.values()):
        raise full("queues of a static topic", queues_max)


def check_topic(topic: str, read_queues: int, write_queues: int, perm: int, queues_max: int) -> None:
    """Raise BrokerError for an invalid topic."""
    _check_name("topic", topic)
    if not (0 <= read_queues <= queues_max and 0 <= write_queues <= queues_max):
        raise refused(
            f"topic {topic} has {read_queues} and {write_queues} queues, allowed are 0 to {queues_max}"
        )
    if not 0 <= perm <= PERM_MAX:
        raise refused(f"topic {topic} has permission {perm}, allowed is 0 to {PERM_MAX}")


def refused(remark: str) -> BrokerError:
    """Return the error for an invalid registration."""
    return BrokerError.for_code(ResponseCode.SYSTEM_ERROR, remark)


def full(what: str, limit: int) -> BrokerError:
    """Return the error for a limit that was reached."""
    return refused(f"the name server takes no more than {limit} {what}")


def _check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise refused(f"{what} of {len(name)} characters, allowed are 1 to {NAME_CHARS_MAX}")
    if not name.isprintable():
        raise refused(f"{what} {name!r} has characters that cannot be printed")


def _check_address(address: str) -> None:
    _check_name("address", address)
    try:
        _, port = split_address(address)
    except ValueError as error:
        raise refused(str(error)) from None
    if port == 0:
        raise refused(f"cannot connect to {address}: port 0; register a real port")


FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

Key = tuple[str, str]  # of a broker process: cluster and address


@dataclass(slots=True, eq=False)
class _BrokerProcess:
    """One broker process. It expires at `seen_at + timeout_s`, or when its channel closes."""

    broker: "_Broker"
    broker_id: int
    key: Key
    ha_address: str
    data_version: DataVersion
    filter_servers: list[str]
    channel: object
    timeout_s: float
    seen_at: float

    @property
    def address(self) -> str:
        return self.key[1]


@dataclass(slots=True, eq=False)
class _Broker:
    """A broker name: the master and its slaves by broker id. In the table it has at least one."""

    name: str
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None
    members: dict[int, _BrokerProcess] = field(default_factory=dict)

    def data(self) -> BrokerData:
        return BrokerData(
            broker_name=self.name,
            cluster=self.cluster,
            broker_addrs={broker_id: self.members[broker_id].address for broker_id in sorted(self.members)},
            enable_acting_master=self.enable_acting_master,
            zone_name=self.zone_name,
        )

    def filter_servers(self) -> dict[str, list[str]]:
        return {
            member.address: member.filter_servers for member in self.members.values() if member.filter_servers
        }


class RouteTable:
    """Brokers and topics of a name server. `generation` grows with every visible change."""

    def __init__(self, settings: NameServerSettings) -> None:
        self.generation = 0
        self._settings = settings
        self._members: dict[Key, _BrokerProcess] = {}
        self._brokers: dict[str, _Broker] = {}
        # By topic, then by broker name. No topic is without brokers, and all of them are in `_brokers`.
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, QueueMapping]] = {}
        self._topic_entries = 0

    # --- Brokers ---

    def register(
        self,
        request: RegisterBroker,
        body: RegisterBrokerBody,
        *,
        channel: object,
        now: float,
        delete_absent_topics: bool = False,
    ) -> RegisterBrokerReply:
        """Register a broker and its topics; topics that it does not name stay as they were.

        Raises BrokerError and RemoteProtocolError. A process that claims the place of one with a newer state
        is left out without a word, as RocketMQ does.
        """
        table = body.topic_config_serialize_wrapper
        mappings = queue_mappings(table)
        check_form(request, body, mappings, self._settings)
        key = (request.cluster_name, request.broker_addr)
        previous = self._members.get(key)
        broker = self._brokers.get(request.broker_name) or _Broker(request.broker_name)
        holder = broker.members.get(request.broker_id)
        if holder is None and len(table.topic_config_table) == 1:
            # An increment of a table that we do not have: the broker sends all of it within its next period.
            raise refused("register broker failed")
        if holder is not None and holder.key != key and _is_newer(holder.data_version, table.data_version):
            if previous is not None:
                self._remove([previous])
            return RegisterBrokerReply()

        is_changed = holder is None or previous is None or previous.data_version != table.data_version
        configs: list[TopicConfig] = []
        holds_topics = _holds_topics(broker, request, key)
        if holds_topics:
            configs = [
                config
                for config in table.topic_config_table.values()
                if is_changed or broker.name not in self._topics.get(config.topic_name, ())
            ]
        self._check_room(key, broker.name, configs)

        self._seat(broker, request, body, channel, now)
        if holds_topics and delete_absent_topics and not mappings:
            named = {config.topic_name for config in table.topic_config_table.values()}
            self._drop_topics([topic for topic in self._topics if topic not in named], {broker.name})
        read_only = broker.enable_acting_master and request.broker_id != MASTER_ID
        for config in configs:
            self._put_queues(config.topic_name, _queue_data(broker.name, config, read_only=read_only))
        if holds_topics and is_changed:
            self._put_mappings(broker.name, mappings)
        return _reply(broker, request.broker_id)

    @property
    def broker_count(self) -> int:
        """Broker processes that are registered."""
        return len(self._members)

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def unregister(self, cluster: str, address: str) -> bool:
        """Remove a broker process. Return whether it was known."""
        member = self._members.get((cluster, address))
        if member is not None:
            self._remove([member])
        return member is not None

    def drop_channel(self, channel: object) -> list[str]:
        """Remove the brokers that registered over this closed channel. Return their addresses."""
        members = [member for member in self._members.values() if member.channel is channel]
        self._remove(members)
        return [member.address for member in members]

    def expire(self, now: float) -> list[tuple[str, object]]:
        """Remove the brokers whose heartbeat timed out. Return their addresses and channels."""
        silent = [member for member in self._members.values() if member.seen_at + member.timeout_s < now]
        self._remove(silent)
        return [(member.address, member.channel) for member in silent]

    def heartbeat(self, cluster: str, address: str, now: float) -> DataVersion | None:
        """Record a heartbeat. Return the version of the broker's topics, None if it is not registered."""
        member = self._members.get((cluster, address))
        if member is None:
            return None
        member.seen_at = now
        return member.data_version

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, by name and by cluster."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._brokers):
            clusters.setdefault(self._brokers[name].cluster, []).append(name)
        table = {name: broker.data() for name, broker in self._brokers.items()}
        return ClusterInfo(broker_addr_table=table, cluster_addr_table=clusters)

    def member_group(self, cluster: str, name: str) -> BrokerMemberGroup:
        """Return the master and slaves of a broker name; empty if it is unknown."""
        broker = self._brokers.get(name)
        addresses = broker.data().broker_addrs if broker is not None else {}
        return BrokerMemberGroup(cluster=cluster, broker_name=name, broker_addrs=addresses)

    # --- Topics ---

    def route(self, topic: str) -> TopicRouteData:
        """Return where a topic's queues are. Raises TopicNotExist."""
        queues = self._topics.get(topic)
        if queues is None:
            remark = f"No topic route info in name server for the topic: {topic}\n{FAQ}"
            raise BrokerError.for_code(ResponseCode.TOPIC_NOT_EXIST, remark)
        names = sorted(queues)
        brokers = [self._brokers[name] for name in names]
        return TopicRouteData(
            broker_datas=[broker.data() for broker in brokers],
            queue_datas=[queues[name] for name in names],
            filter_server_table={
                address: servers for broker in brokers for address, servers in broker.filter_servers().items()
            },
            topic_queue_mapping_by_broker=dict(self._mappings[topic]) if topic in self._mappings else None,
        )

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Register a topic on brokers. Raises BrokerError, and changes nothing, if one is not registered."""
        queues = list(queues)
        if any(entry.broker_name not in self._brokers for entry in queues):
            return
        for entry in queues:
            check_topic(
                topic,
                entry.read_queue_nums,
                entry.write_queue_nums,
                entry.perm,
                self._settings.topic_queues_max,
            )
        new_entries = {entry.broker_name for entry in queues} - self._topics.get(topic, {}).keys()
        self._check_topic_room(int(topic not in self._topics), len(new_entries))
        for entry in queues:
            self._put_queues(topic, entry)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its queues on the brokers of one cluster."""
        names = {name for name, broker in self._brokers.items() if not cluster or broker.cluster == cluster}
        self._drop_topics([topic], names)

    def wipe_write_perm(self, name: str) -> int:
        """Make a broker's topics read-only, until it registers a change. Return their number."""
        return self._set_perms(name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, name: str) -> int:
        """Make a broker's topics readable and writable. Return their number."""
        return self._set_perms(name, lambda _: PERM_READ_WRITE)

    def topics(self) -> TopicList:
        """Return all topics."""
        return TopicList(topic_list=sorted(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """Return the topics of a cluster."""
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return TopicList(topic_list=sorted(t for t, queues in self._topics.items() if names & queues.keys()))

    def system_topics(self) -> TopicList:
        """Return the topics named after clusters and brokers, and the address of a broker that knows more."""
        info = self.cluster_info()
        names = [*info.cluster_addr_table, *info.broker_addr_table]
        addresses = (
            address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()
        )
        return TopicList(topic_list=sorted(set(names)), broker_addr=next(addresses, None))

    def topics_with_flags(self, wanted: int, unwanted: int = 0) -> TopicList:
        """Return the topics whose system flags hold all that is wanted and nothing unwanted."""
        flags = {topic: next(iter(queues.values())).topic_sys_flag for topic, queues in self._topics.items()}
        return TopicList(
            topic_list=sorted(
                topic for topic, flag in flags.items() if flag & wanted == wanted and not flag & unwanted
            )
        )

    # --- Changes ---

    def _seat(
        self,
        broker: _Broker,
        request: RegisterBroker,
        body: RegisterBrokerBody,
        channel: object,
        now: float,
    ) -> None:
        """Place a process among the members of its broker name, and remove the entry it replaces."""
        shown = (broker.data(), broker.filter_servers())
        key = (request.cluster_name, request.broker_addr)
        previous = self._members.get(key)
        if previous is not None and previous.broker is broker:
            del broker.members[previous.broker_id]  # it may have changed its role
        elif previous is not None:
            self._remove([previous])  # it has changed its name
        replaced = broker.members.get(request.broker_id)
        if replaced is not None:
            del self._members[replaced.key]  # another process has taken its place
        self._brokers[broker.name] = broker
        broker.cluster = request.cluster_name
        broker.enable_acting_master = bool(request.enable_acting_master)
        broker.zone_name = request.zone_name
        self._members[key] = broker.members[request.broker_id] = _BrokerProcess(
            broker=broker,
            broker_id=request.broker_id,
            key=key,
            ha_address=request.ha_server_addr,
            data_version=body.topic_config_serialize_wrapper.data_version,
            filter_servers=body.filter_server_list,
            channel=channel,
            timeout_s=(request.heartbeat_timeout_ms or self._settings.broker_timeout_ms) / 1000,
            seen_at=now,
        )
        if (broker.data(), broker.filter_servers()) != shown:
            self.generation += 1

    def _remove(self, members: Collection[_BrokerProcess]) -> None:
        """Remove processes. The last of a name takes its topics along; acting masters accept no writes."""
        if not members:
            return
        gone: set[str] = set()
        headless: set[str] = set()
        for member in members:
            broker = member.broker
            del self._members[member.key]
            del broker.members[member.broker_id]
            if not broker.members:
                del self._brokers[broker.name]
                gone.add(broker.name)
            elif broker.enable_acting_master and MASTER_ID not in broker.members:
                headless.add(broker.name)
        if gone:
            self._drop_topics(list(self._topics), gone)
        for name in headless - gone:
            self.wipe_write_perm(name)
        self.generation += 1

    def _put_queues(self, topic: str, queues: QueueData) -> None:
        entries = self._topics.setdefault(topic, {})
        if queues.broker_name not in entries:
            self._topic_entries += 1
        if entries.get(queues.broker_name) != queues:
            entries[queues.broker_name] = queues
            self.generation += 1

    def _put_mappings(self, name: str, mappings: dict[str, QueueMapping]) -> None:
        for topic, mapping in mappings.items():
            if name in self._topics.get(topic, ()):
                self._mappings.setdefault(topic, {})[name] = mapping
                self.generation += 1

    def _drop_topics(self, topics: Iterable[str], names: Collection[str]) -> None:
        """Remove the queues of these brokers from these topics."""
        for topic in topics:
            entries = self._topics.get(topic, {})
            dropped = [name for name in entries if name in names]
            if not dropped:
                continue
            mappings = self._mappings.get(topic, {})
            for name in dropped:
                del entries[name]
                mappings.pop(name, None)
            self._topic_entries -= len(dropped)
            self.generation += 1
            if not mappings:
                self._mappings.pop(topic, None)
            if not entries:
                del self._topics[topic]

    def _set_perms(self, name: str, perm: Callable[[int], int]) -> int:
        held = list(self._held(name))
        for topic, queues in held:
            self._put_queues(topic, msgspec.structs.replace(queues, perm=perm(queues.perm)))
        return len(held)

    def _held(self, name: str) -> Iterator[tuple[str, QueueData]]:
        return ((topic, entries[name]) for topic, entries in self._topics.items() if name in entries)

    # --- Checks ---

    def _check_room(self, key: Key, name: str, configs: list[TopicConfig]) -> None:
        if key not in self._members and len(self._members) >= self._settings.brokers_max:
            raise full("brokers", self._settings.brokers_max)
        topics = {config.topic_name for config in configs}
        new_entries = sum(name not in self._topics.get(topic, ()) for topic in topics)
        self._check_topic_room(len(topics - self._topics.keys()), new_entries)

    def _check_topic_room(self, new_topics: int, new_entries: int) -> None:
        if new_topics and len(self._topics) + new_topics > self._settings.topics_max:
            raise full("topics", self._settings.topics_max)
        if new_entries and self._topic_entries + new_entries > self._settings.topic_entries_max:
            raise full("topics on brokers", self._settings.topic_entries_max)


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Return the part of a route in a zone; brokers without a master serve every zone."""
    kept = [
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    ]
    names = {broker.broker_name for broker in kept}
    addresses = {address for broker in kept for address in broker.broker_addrs.values()}
    return msgspec.structs.replace(
        route,
        broker_datas=kept,
        queue_datas=[queues for queues in route.queue_datas if queues.broker_name in names],
        filter_server_table={
            address: servers for address, servers in route.filter_server_table.items() if address in addresses
        },
    )


def _is_newer(version: DataVersion, other: DataVersion) -> bool:
    return version.state_version > other.state_version


def _holds_topics(broker: _Broker, request: RegisterBroker, key: Key) -> bool:
    """The master reports the topics; without one, the RocketMQ 5 slave with the smallest id."""
    if request.broker_id == MASTER_ID:
        return True
    others = (broker_id for broker_id, member in broker.members.items() if member.key != key)
    return request.enable_acting_master is not None and all(request.broker_id <= other for other in others)


def _queue_data(name: str, config: TopicConfig, *, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm & ~PERM_WRITE if read_only else config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _reply(broker: _Broker, broker_id: int) -> RegisterBrokerReply:
    master = broker.members.get(MASTER_ID)
    if master is None or broker_id == MASTER_ID:
        return RegisterBrokerReply()
    return RegisterBrokerReply(ha_server_addr=master.ha_address, master_addr=master.address)
