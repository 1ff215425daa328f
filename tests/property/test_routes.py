"""The route table against a model of dictionaries: whatever happens to brokers, no route names a dead one."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.errors import BrokerError, TopicNotExist
from skylark.namesrv.route_table import RouteTable
from skylark.protocol.bodies import DataVersion
from skylark.settings import NameServerSettings
from tests.unit.namesrv.registering import addresses, registration, topics

TIMEOUT_S = 120
BROKERS_MAX = 4
TOPICS_MAX = 5
ENTRIES_MAX = 9
CLUSTER_OF = {"a": "c1", "b": "c1", "c": "c2"}
TOPICS = [f"t{number}" for number in range(6)]
NAMES = st.sampled_from(sorted(CLUSTER_OF))
IDS = st.integers(0, 2)
ADDRESSES = st.sampled_from([f"10.0.0.{number}:10911" for number in range(1, 6)])
CHANNELS = st.integers(0, 3)

Key = tuple[str, str]


@dataclass
class Process:
    """What the model knows of a broker process."""

    name: str
    broker_id: int
    channel: int
    deadline: float


class Routes(RuleBasedStateMachine):
    """Brokers of RocketMQ 4, whose masters alone hold topics. All topics look the same."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(
            NameServerSettings(
                broker_timeout_ms=TIMEOUT_S * 1000,
                brokers_max=BROKERS_MAX,
                topics_max=TOPICS_MAX,
                topic_entries_max=ENTRIES_MAX,
            )
        )
        self.now = 0.0
        self.version = 0
        self.processes: dict[Key, Process] = {}
        self.topics: dict[str, set[str]] = {}  # by broker name

    # --- The model ---

    def forget(self, keys: list[Key]) -> None:
        names = {self.processes.pop(key).name for key in keys}
        for name in names - {process.name for process in self.processes.values()}:
            self.topics.pop(name, None)

    def place(self, name: str, broker_id: int) -> list[Key]:
        return [
            key
            for key, process in self.processes.items()
            if (process.name, process.broker_id) == (name, broker_id)
        ]

    def has_room(self, key: Key, name: str, named: set[str]) -> bool:
        known = set().union(*self.topics.values())
        mine = self.topics.get(name, set())
        entries = sum(map(len, self.topics.values()))
        return (
            (key in self.processes or len(self.processes) < BROKERS_MAX)
            and (named <= known or len(known | named) <= TOPICS_MAX)
            and (named <= mine or entries + len(named - mine) <= ENTRIES_MAX)
        )

    # --- What happens ---

    @rule(
        name=NAMES,
        broker_id=IDS,
        address=ADDRESSES,
        channel=CHANNELS,
        named=st.sets(st.sampled_from(TOPICS), max_size=4),
        is_new=st.booleans(),
    )
    def register(
        self, name: str, broker_id: int, address: str, channel: int, named: set[str], is_new: bool
    ) -> None:
        self.version += is_new
        key = (CLUSTER_OF[name], address)
        place = self.place(name, broker_id)
        is_refused = (len(named) == 1 and not place) or not self.has_room(
            key, name, named if broker_id == 0 else set()
        )
        try:
            self.table.register(
                registration(name, broker_id, address, cluster=key[0]),
                topics(*named, version=DataVersion(counter=self.version)),
                channel=channel,
                now=self.now,
            )
        except BrokerError:
            assert is_refused
            return
        assert not is_refused
        old = self.processes.get(key)
        if old is not None and old.name != name:
            self.forget([key])
        for replaced in self.place(name, broker_id):
            del self.processes[replaced]
        self.processes[key] = Process(name, broker_id, channel, self.now + TIMEOUT_S)
        if broker_id == 0:
            self.topics.setdefault(name, set()).update(named)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.processes)))
        self.table.unregister(*key)
        self.forget([key])

    @rule(cluster=st.sampled_from(["c1", "c2"]), address=ADDRESSES)
    def heartbeat(self, cluster: str, address: str) -> None:
        process = self.processes.get((cluster, address))
        assert (self.table.heartbeat(cluster, address, self.now) is None) == (process is None)
        if process is not None:
            process.deadline = self.now + TIMEOUT_S

    @rule(channel=CHANNELS)
    def close(self, channel: int) -> None:
        ended = [key for key, process in self.processes.items() if process.channel == channel]
        assert sorted(self.table.drop_channel(channel)) == sorted(address for _, address in ended)
        self.forget(ended)

    @rule(seconds=st.sampled_from([1, 30, 60, 119, 121]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        silent = [key for key, process in self.processes.items() if process.deadline < self.now]
        expired = [address for address, _ in self.table.expire(self.now)]
        assert sorted(expired) == sorted(address for _, address in silent)
        self.forget(silent)

    @rule(topic=st.sampled_from(TOPICS), cluster=st.sampled_from(["c1", "c2", None]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)
        for name, held in self.topics.items():
            if cluster in (None, CLUSTER_OF[name]):
                held.discard(topic)

    # --- What must hold ---

    def members(self) -> dict[str, dict[int, str]]:
        members: dict[str, dict[int, str]] = {}
        for (_, address), process in self.processes.items():
            members.setdefault(process.name, {})[process.broker_id] = address
        return members

    @invariant()
    def routes_name_living_brokers_only(self) -> None:
        members = self.members()
        for topic in TOPICS:
            holders = {name: members[name] for name, held in self.topics.items() if topic in held}
            try:
                route = self.table.route(topic)
            except TopicNotExist:
                assert not holders
                continue
            assert holders
            assert addresses(route) == holders
            assert {queues.broker_name for queues in route.queue_datas} == set(holders)

    @invariant()
    def lists_agree_with_routes(self) -> None:
        info = self.table.cluster_info()
        assert {name: data.broker_addrs for name, data in info.broker_addr_table.items()} == self.members()
        named = [(name, cluster) for cluster, names in info.cluster_addr_table.items() for name in names]
        assert sorted(named) == sorted((name, CLUSTER_OF[name]) for name in self.members())
        assert set(self.table.topics().topic_list) == set().union(*self.topics.values())


Routes.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestRoutes = Routes.TestCase
