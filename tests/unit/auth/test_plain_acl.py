"""Accounts of RocketMQ 4 become users and rules."""

import pytest

from skylark.auth.model import Acl, AclEntry
from skylark.auth.store import convert_accounts

DOCUMENT = {
    "globalWhiteRemoteAddresses": ["10.10.103.*"],
    "accounts": [
        {
            "accessKey": "RocketMQ",
            "secretKey": 12345678,
            "whiteRemoteAddress": "",
            "admin": False,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB", "topicD=EVERYTHING"],
            "groupPerms": ["groupA=DENY", "groupB=PUB | SUB"],
        },
        {
            "accessKey": "rocketmq2",
            "secretKey": "12345678",
            "whiteRemoteAddress": "192.168.1.*",
            "admin": True,
        },
    ],
}


def texts(entries: tuple[AclEntry, ...]) -> list[str]:
    return [
        f"{entry.decision} {'|'.join(sorted(action.value for action in entry.actions))} {entry.resource}"
        for entry in entries
    ]


def test_accounts_are_converted() -> None:
    users, acls, warnings = convert_accounts(DOCUMENT)
    assert [(user.name, user.secret, user.is_super) for user in users] == [
        ("RocketMQ", "12345678", False),
        ("rocketmq2", "12345678", True),
    ]
    (acl,) = acls
    assert isinstance(acl, Acl)
    assert texts(acl.custom) == [
        "Deny All Topic:topicA",
        "Allow Pub|Sub Topic:topicB",
        "Allow Sub Topic:topicC",
        "Deny All Topic:topicD",  # RocketMQ's own migration allows it
        "Deny All Group:groupA",
        "Allow Pub|Sub Group:groupB",
    ]
    assert texts(acl.default) == ["Deny All Topic:*", "Allow Sub Group:*"]
    assert [warning.partition(" is not")[0] for warning in warnings] == [
        "globalWhiteRemoteAddresses",
        "whiteRemoteAddress of rocketmq2",
    ]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "no list of accounts"),
        ({"accounts": "x"}, "no list of accounts"),
        ({"accounts": [{"accessKey": "a"}]}, "account 1 has no"),
        (
            {"accounts": [{"accessKey": "a", "secretKey": "b", "topicPerms": ["t"]}]},
            "'t' is not NAME=PERMISSION",
        ),
    ],
)
def test_other_documents_are_refused(document: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        convert_accounts(document)
