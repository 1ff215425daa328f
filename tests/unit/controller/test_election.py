"""The rules of elections, one row each."""

from collections.abc import Mapping
from typing import Any

import pytest

from skylark.controller.election import Outcome, elect
from skylark.controller.group import BrokerGroup, decode_group, encode_group
from skylark.controller.liveness import LiveBroker
from tests.unit.controller.groups import living, make_group

NEVER = make_group(1, 2)
ONE = make_group(1, 2, 3, master=1, epoch=1, members={1, 2}, set_epoch=2)
NONE = make_group(1, 2, 3, epoch=2, members={1, 2}, set_epoch=2)
LEARNER = make_group(1, 2, master=1, epoch=1, members={1}, set_epoch=1, learners={2})
UNCLEAN = make_group(1, 2, epoch=2, members={1}, set_epoch=2, unclean={1})
EMPTIED = make_group(2, 3, epoch=4, members=(), set_epoch=5)


@pytest.mark.parametrize(
    ("group", "live", "arguments", "outcome", "master"),
    [
        pytest.param(NEVER, living(), {"asked_by": 2}, Outcome.ELECTED, 2, id="whoever asks first"),
        pytest.param(NEVER, living(1, 2), {}, Outcome.NOBODY, None, id="nobody asked"),
        pytest.param(NEVER, living(), {"asked_by": 9}, Outcome.NOBODY, None, id="unknown asks first"),
        pytest.param(ONE, living(1, 2), {"master_lives": True, "asked_by": 2}, Outcome.KEPT, 1, id="alive"),
        pytest.param(ONE, living(2, 3), {}, Outcome.ELECTED, 2, id="only members of the set"),
        pytest.param(ONE, living(3), {"asked_by": 3}, Outcome.NOBODY, 1, id="a broker asked in vain"),
        pytest.param(ONE, living(3), {}, Outcome.NOBODY, None, id="the controller removes the master"),
        pytest.param(
            ONE, living(3), {"is_unclean_allowed": True}, Outcome.ELECTED, 3, id="unclean, if allowed"
        ),
        pytest.param(
            ONE, living(2, 3, b3=(9, 9, 0)), {"is_unclean_allowed": True}, Outcome.ELECTED, 2, id="in the set"
        ),
        pytest.param(NONE, living(), {}, Outcome.NOBODY, None, id="still nobody"),
        pytest.param(NONE, living(1, 2, b2=(0, 5, 0)), {}, Outcome.ELECTED, 2, id="greater offset"),
        pytest.param(
            NONE, living(1, 2, b1=(1, 5, 0), b2=(0, 9, 0)), {}, Outcome.ELECTED, 1, id="greater epoch first"
        ),
        pytest.param(
            NONE, living(1, 2, b1=(1, 5, 7), b2=(1, 5, 6)), {}, Outcome.ELECTED, 2, id="smaller priority"
        ),
        pytest.param(
            NONE, living(1, 2, b1=(1, 1 << 40, 0), b2=(1, 0, 0)), {}, Outcome.ELECTED, 1, id="beyond 2 GiB"
        ),
        pytest.param(
            ONE, living(1, 2), {"master_lives": True, "asked_by": 2, "is_designated": True},
            Outcome.ELECTED, 2, id="designated",
        ),
        pytest.param(
            ONE, living(1, 2), {"master_lives": True, "asked_by": 1, "is_designated": True},
            Outcome.KEPT, 1, id="designated is the master",
        ),
        pytest.param(
            ONE, living(1, 2, 3), {"master_lives": True, "asked_by": 3, "is_designated": True},
            Outcome.NOBODY, 1, id="designated is not in the set",
        ),
        pytest.param(LEARNER, living(2), {"is_unclean_allowed": True}, Outcome.NOBODY, None, id="learner"),
        pytest.param(UNCLEAN, living(1), {}, Outcome.ELECTED, 1, id="unclean start, but nobody has more"),
        pytest.param(UNCLEAN, living(1, 2, b2=(1, 1, 0)), {}, Outcome.NOBODY, None, id="another has more"),
        pytest.param(EMPTIED, living(2, 3, b3=(1, 9, 0)), {}, Outcome.ELECTED, 3, id="set was cleaned"),
        pytest.param(
            make_group(2, 3, epoch=1, members=(), set_epoch=2), living(2, 3, b3=(1, 9, 0)), {"asked_by": 2},
            Outcome.ELECTED, 3, id="cleaned after one election",
        ),
        pytest.param(
            NONE, living(1, 2), {"master_lives": True, "asked_by": 2}, Outcome.ELECTED, 1, id="none to keep"
        ),
    ],
)  # fmt: skip
def test_the_rules(
    group: BrokerGroup,
    live: Mapping[int, LiveBroker],
    arguments: dict[str, Any],
    outcome: Outcome,
    master: int | None,
) -> None:
    election = elect(group, live, **{"master_lives": False, **arguments})
    assert (election.outcome, election.group.master) == (outcome, master)
    if outcome is Outcome.ELECTED:
        assert election.group.master_epoch > group.master_epoch
        assert election.group.members == {master}
        assert election.group.set_epoch == group.set_epoch + 1
    elif election.group.master != group.master:
        assert election.group.master_epoch == group.master_epoch + 1
        assert (election.group.members, election.group.set_epoch) == (group.members, group.set_epoch)
    else:
        assert election.group is group


def test_the_first_epoch_exceeds_those_in_the_logs() -> None:
    assert elect(NEVER, {}, master_lives=False, asked_by=1).group.master_epoch == 1
    assert elect(NEVER, living(1), master_lives=False, asked_by=1).group.master_epoch == 1
    after_clean = elect(NEVER, living(1, 2, b2=(7, 0, 0)), master_lives=False, asked_by=1)
    assert after_clean.group.master_epoch == 8


def test_a_document_is_plain_json() -> None:
    text = encode_group(ONE)
    assert decode_group(text) == ONE
    assert text.startswith(
        b'{"v":1,"cluster":"C1","name":"broker-a","masterEpoch":1,"master":1,"setEpoch":2,"set":['
    )
    with pytest.raises(ValueError, match="format 2 of group broker-a is unknown"):
        decode_group(text.replace(b'"v":1', b'"v":2'))
