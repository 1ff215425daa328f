"""Pure. What a broker may say of itself when it registers: forms and sizes, before the table is asked."""

import msgspec

from skylark.errors import BrokerError, RemoteProtocolError
from skylark.protocol.bodies import Body, RegisterBrokerBody, TopicConfigTable
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Int32, Int64
from skylark.protocol.requests.route import RegisterBroker
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
    """Raise the BrokerError that refuses what no broker can mean."""
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
    """Raise the BrokerError that refuses a topic."""
    _check_name("topic", topic)
    if not (0 <= read_queues <= queues_max and 0 <= write_queues <= queues_max):
        raise refused(
            f"topic {topic} has {read_queues} and {write_queues} queues, allowed are 0 to {queues_max}"
        )
    if not 0 <= perm <= PERM_MAX:
        raise refused(f"topic {topic} has permission {perm}, allowed is 0 to {PERM_MAX}")


def refused(remark: str) -> BrokerError:
    """Return the answer to what cannot be taken."""
    return BrokerError.for_code(ResponseCode.SYSTEM_ERROR, remark)


def full(what: str, limit: int) -> BrokerError:
    """Return the answer to what there is no room for."""
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
        raise refused(f"nobody can connect to {address}")
