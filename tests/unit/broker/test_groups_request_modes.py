"""Request modes: set, shown, kept in RocketMQ's file."""

import pytest

from skylark.broker.groups import RequestModes
from skylark.errors import BrokerError
from skylark.model import java
from skylark.protocol.bodies import RequestMode
from skylark.settings.broker import PopSettings, RequestKind
from tests.unit.broker.tables import golden_config, live


def mode(topic: str = "T", group: str = "CG", mode: str = "PULL") -> RequestMode:
    return RequestMode(topic=topic, consumer_group=group, mode=mode)


def test_apaches_file_is_read_and_written_the_same() -> None:
    data = golden_config("messageRequestMode.json")
    modes = RequestModes(live())
    modes.load(data)
    assert modes.table().message_request_mode_map["TopicPop"]["CG_pop"].mode == "POP"
    assert java.loads(modes.snapshot()()) == java.loads(data)


def test_a_mode_is_set_and_told() -> None:
    modes, told = RequestModes(live()), []
    modes.on_change = lambda: told.append(len(modes))
    modes.set(mode())
    modes.set(mode())
    assert modes.table().message_request_mode_map == {"T": {"CG": mode()}}
    assert told == [1, 1]


def test_a_snapshot_is_of_its_time() -> None:
    modes = RequestModes(live())
    modes.set(mode())
    encode = modes.snapshot()
    modes.set(mode(group="other"))
    assert b"other" not in encode()


@pytest.mark.parametrize("wanted", ["PUSH", "", "pull"])
def test_an_unknown_mode_is_refused(wanted: str) -> None:
    modes = RequestModes(live())
    with pytest.raises(BrokerError, match=f"mode {wanted} is not known, allowed are PULL and POP"):
        modes.set(mode(mode=wanted))
    assert len(modes) == 0


def test_without_a_mode_the_settings_decide_but_retry_topics_are_pulled() -> None:
    modes = RequestModes(live(pop=PopSettings(default_mode=RequestKind.POP, default_share_queues=2)))
    assert (modes.get("T", "CG").mode, modes.get("T", "CG").pop_share_queue_num) == ("POP", 2)
    assert modes.get("%RETRY%CG", "CG").mode == "PULL"
    modes.set(mode())
    assert modes.get("T", "CG").mode == "PULL"


def test_there_is_no_room_without_end() -> None:
    modes = RequestModes(live(groups_max=1))
    modes.set(mode())
    modes.set(mode())
    with pytest.raises(BrokerError, match="no more than 1"):
        modes.set(mode(group="other"))
