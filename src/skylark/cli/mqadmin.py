"""Pure. The commands of `mqadmin` (RocketMQ 5.3.3), and the commands of `skylark` that do the same.

`skylark topicRoute -t orders` runs `skylark topic route orders`. If an option has no equivalent, nothing is
run, and the command to use instead is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from skylark.cli.errors import UsageError

OWN_FLAGS = frozenset({"--yes", "-y", "--json", "--wide"})
"""Flags of `skylark` that may be added to a command of `mqadmin`."""
USER_PREFIX = "User:"
NAMESRV_WORDS = " [--namesrv {n}]"
_PART = re.compile(r"\[([^][]*)\]|([^\s[\]]+)")
_FIELD = re.compile(r"\{(\w+)(?:(:|==)(\w*))?\}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")


class Counterpart(NamedTuple):
    """A command of `mqadmin`.

    `options` are `LETTER/NAME` words, with `!` for one without a value and `~` for one that makes no
    difference here. `templates` are commands of `skylark`: the first that uses every given option is run.
    `{t}` is the value of `-t`, `{t:form}` the value in another form, `{t==x}` requires the value x, and a
    part in brackets is left out if its options are not given. `similar` is what to use without a template.
    """

    options: str
    templates: tuple[str, ...] = ()
    similar: str = ""


PLACE = "b/brokerAddr c/clusterName"
WHERE = "[--broker {b}] [--cluster {c}]"
ONLY_MQADMIN = "`mqadmin` itself; Skylark's servers do not support it"

COUNTERPARTS: Mapping[str, Counterpart] = {
    # Topics
    "updateTopic": Counterpart(
        f"{PLACE} t/topic r/readQueueNums w/writeQueueNums p/perm a/attributes o/order u/unit s/hasUnitSub",
        (
            "topic create {t} [--read-queues {r}] [--write-queues {w}] [--permission {p:permission}]"
            f" [{{o:ordered}}] {WHERE}",
        ),
    ),
    "updateTopicList": Counterpart(f"{PLACE} f/filename", (f"cluster import {{f}} {WHERE}",)),
    "updateTopicPerm": Counterpart(
        f"{PLACE} t/topic p/perm", (f"topic update {{t}} --permission {{p:permission}} {WHERE}",)
    ),
    "deleteTopic": Counterpart("t/topic c/clusterName", ("topic delete {t} [--cluster {c}]",)),
    "topicList": Counterpart("c/clusterModel!", ("topic list",)),
    "topicRoute": Counterpart("t/topic l/list!~", ("topic route {t}",)),
    "topicStatus": Counterpart("t/topic c/cluster", ("topic status {t}",)),
    "topicClusterList": Counterpart("t/topic", ("topic route {t}",)),
    "updateOrderConf": Counterpart(
        "t/topic v/orderConf m/method",
        ("topic order {t} {v} {m==put}", "topic order {t} {m==get}", "topic order {t} --remove {m==delete}"),
    ),
    "allocateMQ": Counterpart("t/topic i/ipList", ("topic share {t} {i:words}",)),
    "statsAll": Counterpart("a/activeTopic! t/topic", ("top --once",)),
    # Groups, consumers, producers
    "updateSubGroup": Counterpart(
        f"{PLACE} g/groupName s/consumeEnable m/consumeFromMinEnable d/consumeBroadcastEnable"
        " o/consumeMessageOrderly q/retryQueueNums r/retryMaxTimes p/groupRetryPolicy i/brokerId"
        " w/whichBrokerWhenConsumeSlowly a/notifyConsumerIdsChanged",
        (
            "group create {g} [--retries {r}] [{s:enabled}] [{d:broadcast}]"
            f" [{{o:orderly}}] {WHERE}",
        ),
    ),
    "updateSubGroupList": Counterpart(f"{PLACE} f/filename", (f"cluster import {{f}} {WHERE}",)),
    "deleteSubGroup": Counterpart(
        f"{PLACE} g/groupName r/removeOffset",
        (
            "group delete {g} [--cluster {c}] {r==true}",
            "group delete {g} --keep-offsets [--cluster {c}] [{r==false}]",
        ),
    ),
    "getConsumerConfig": Counterpart("g/groupName", ("group config {g}",)),
    "setConsumeMode": Counterpart(
        f"{PLACE} t/topicName g/groupName m/mode q/popShareQueueNum",
        ("group mode {g} {t} {m} [--pop-queues {q}]",),
    ),
    "consumerProgress": Counterpart(
        "g/groupName t/topicName s/showClientIP c/cluster",
        ("group status {g} [--topic {t}]", "group list [--cluster {c}]"),
    ),
    "consumerConnection": Counterpart("g/consumerGroup b/brokerAddr", ("consumer list {g}",)),
    "consumerStatus": Counterpart(
        "g/consumerGroup i/clientId b/brokerAddr s/jstack!", ("consumer status {g} [{i}] [--stack {s}]",)
    ),
    "consumer": Counterpart("g/consumerGroup s/jstack!", ("consumer status {g} [--stack {s}]",)),
    "startMonitoring": Counterpart("", similar="alert rules for Prometheus, in deploy/"),
    "producerConnection": Counterpart("g/producerGroup t/topic~", ("producer list {g}",)),
    "producer": Counterpart("b/broker", ("producer list --broker {b}",)),
    # Offsets
    "resetOffsetByTime": Counterpart(
        "g/group t/topic s/timestamp f/force~ b/broker q/queue o/offset c/cluster",
        (
            "offset reset {g} {t} --queue {b:name}:{q} --offset {o} [{s:ignored}]",
            "offset reset {g} {t} --to {s:time}",
        ),
    ),
    "resetOffsetByTimeOld": Counterpart(
        "g/group t/topic s/timestamp f/force~ c/cluster", ("offset reset {g} {t} --to {s:time}",)
    ),
    "skipAccumulatedMessage": Counterpart("g/group t/topic f/force~ c/cluster", ("offset skip {g} {t}",)),
    "cloneGroupOffset": Counterpart(
        "s/srcGroup d/destGroup t/topic o/offline~", ("offset clone {s} {d} --topic {t}",)
    ),
    "getConsumerStatus": Counterpart("g/group t/topic i/originClientId", ("consumer positions {g} {t}",)),
    # Messages
    "queryMsgById": Counterpart(
        "t/topic i/msgId g/consumerGroup d/clientId s/sendMessage u/unitName f/bodyFormat c/cluster",
        ("message consume {g} {d} {t} {i}", "message get {t} {i}"),
    ),
    "queryMsgByKey": Counterpart(
        "t/topic k/msgKey b/beginTimestamp e/endTimestamp m/maxNum c/cluster",
        ("message key {t} {k} [--since {b:time}] [--until {e:time}] [--limit {m}]",),
    ),
    "queryMsgByUniqueKey": Counterpart(
        "t/topic i/msgId g/consumerGroup d/clientId a/showAll! c/cluster",
        (
            "message consume {g} {d} {t} {i}",
            "message get {t} {i}",
            "message key {t} {i} --unique {a}",
        ),
    ),
    "queryMsgByOffset": Counterpart(
        "t/topic b/brokerName i/queueId o/offset f/bodyFormat", ("message at {t} {b}:{i} {o}",)
    ),
    "queryMsgTraceById": Counterpart(
        "i/msgId t/traceTopic b/beginTimestamp e/endTimestamp c/maxNum",
        ("message trace {i} [--trace-topic {t}]",),
    ),
    "printMsg": Counterpart(
        "t/topic c/charsetName s/subExpression b/beginTimestamp e/endTimestamp d/printBody~ l/lmqParentTopic",
        ("message list {t} [--tags {s}] [--since {b:time}] [--until {e:time}]",),
    ),
    "printMsgByQueue": Counterpart(
        "t/topic a/brokerName i/queueId c/charsetName s/subExpression b/beginTimestamp e/endTimestamp p/print"
        " d/printBody f/calculate",
        similar="`skylark tail TOPIC --from begin --no-follow`",
    ),
    "consumeMessage": Counterpart(
        "t/topic b/brokerName i/queueId o/offset g/consumerGroup s/beginTimestamp e/endTimestamp"
        " c/MessageNumber",
        (
            "tail {t} --from {s:time} --no-follow [--limit {c}]",
            "tail {t} --from begin --no-follow [--limit {c}]",
        ),
    ),
    "sendMessage": Counterpart(
        "t/topic p/body k/key c/tags b/broker i/qid m/msgTraceEnable",
        ("send {t} {p} [--key {k}] [--tag {c}] [--queue {b}:{i}] [{m:trace}]",),
    ),
    "checkMsgSendRT": Counterpart("t/topic a/amount s/size", similar="`skylark cluster latency`"),
    "clusterRT": Counterpart(
        "a/amount s/size c/cluster p/print m/machine i/interval",
        ("cluster latency [--count {a}] [--size {s}] [--cluster {c}]",),
    ),
    "sendMsgStatus": Counterpart("b/brokerName s/messageSize c/count", similar="`skylark cluster latency`"),
    "DecodeMessageId": Counterpart("i/messageId n/namesrvAddr~", ("message id {i}",)),
    "queryCq": Counterpart(
        "t/topic q/queue i/index c/count b/broker g/consumer",
        ("message units {t} {b:name}:{q} {i} [--limit {c}] [--group {g}]",),
    ),
    # Brokers, clusters, name servers
    "clusterList": Counterpart(
        "m/moreStats!~ i/interval c/clusterName",
        ("cluster list --watch --every {i} [--cluster {c}]", "cluster list [--cluster {c}]"),
    ),
    "brokerStatus": Counterpart(PLACE, ("broker status {b}",)),
    "brokerConsumeStats": Counterpart(
        "b/brokerAddr t/timeoutMillis l/level o/order", ("broker progress {b} [--behind {l}]",)
    ),
    "getBrokerConfig": Counterpart(PLACE, ("broker config {b}",)),
    "updateBrokerConfig": Counterpart(
        f"{PLACE} a/updateAllBroker k/key v/value", (f"broker set {{k}}={{v}} {WHERE}",)
    ),
    "cleanExpiredCQ": Counterpart(f"{PLACE}", (f"broker clean queues {WHERE}",)),
    "cleanUnusedTopic": Counterpart(f"{PLACE}", (f"broker clean topics {WHERE}",)),
    "deleteExpiredCommitLog": Counterpart(f"{PLACE}", (f"broker clean log {WHERE}",)),
    "wipeWritePerm": Counterpart("b/brokerName", ("broker drain {b}",)),
    "addWritePerm": Counterpart("b/brokerName", ("broker drain {b} --undo",)),
    "haStatus": Counterpart(f"{PLACE} i/interval", ("broker ha {b}",)),
    "getNamesrvConfig": Counterpart("", ("namesrv config",)),
    "updateNamesrvConfig": Counterpart("k/key v/value", ("namesrv set {k}={v}",)),
    "updateKvConfig": Counterpart("s/namespace k/key v/value", ("namesrv put {s} {k} {v}",)),
    "deleteKvConfig": Counterpart("s/namespace k/key", ("namesrv delete {s} {k}",)),
    "exportMetadata": Counterpart(
        f"{PLACE} f/filePath t/topic! g/subscriptionGroup! s/specialTopic!",
        similar="`skylark cluster export > metadata.json`",
    ),
    "exportConfigs": Counterpart("c/clusterName f/filePath", similar="`skylark broker config BROKER --json`"),
    "exportMetrics": Counterpart("c/clusterName f/filePath", similar="`skylark broker status BROKER --json`"),
    # Users and their rules; a secret is not taken from the command line
    "createUser": Counterpart("", similar="`skylark user create NAME`, with --secret-file for a secret"),
    "updateUser": Counterpart("", similar="`skylark user update NAME`, with --secret-file for a new secret"),
    "deleteUser": Counterpart(f"{PLACE} u/username", (f"user delete {{u}} {WHERE}",)),
    "getUser": Counterpart(f"{PLACE} u/username", (f"user show {{u}} {WHERE}",)),
    "listUser": Counterpart(f"{PLACE} f/filter", (f"user list [{{f}}] {WHERE}",)),
    "createAcl": Counterpart(
        f"{PLACE} s/subject r/resources a/actions i/sourceIp d/decision",
        (
            "acl create {s:user} {r:one} --actions {a} {d:decision}"
            f" [--from {{i:one}}] {WHERE}",
        ),
    ),
    "updateAcl": Counterpart("", similar="`skylark acl update USER RESOURCE`"),
    "deleteAcl": Counterpart(
        f"{PLACE} s/subject r/resources", (f"acl delete {{s:user}} [{{r:one}}] {WHERE}",)
    ),
    "getAcl": Counterpart(f"{PLACE} s/subject", (f"acl show {{s:user}} {WHERE}",)),
    "listAcl": Counterpart(
        f"{PLACE} s/subject r/resource", (f"acl list [{{s:user}}] [--resource {{r}}] {WHERE}",)
    ),
    "copyUser": Counterpart("", similar="`skylark user export FILE` and `skylark user import FILE`"),
    "copyAcl": Counterpart("", similar="`skylark acl export FILE` and `skylark acl import FILE`"),
    # Without a counterpart
    **dict.fromkeys(
        (
            "getSyncStateSet electMaster getControllerMetaData getControllerConfig updateControllerConfig"
            " cleanBrokerMetadata getBrokerEpoch addBroker removeBroker"
            " updateStaticTopic remappingStaticTopic dumpCompactionLog exportPopRecord"
            " rocksDBConfigToJson exportMetadataInRocksDB checkRocksdbCqWriteProgress"
            " getBrokerLiteInfo getParentTopicInfo getLiteTopicInfo getLiteClientInfo getLiteGroupInfo"
            " triggerLiteDispatch"
        ).split(),
        Counterpart("", similar=ONLY_MQADMIN),
    ),
    **dict.fromkeys(
        (
            "getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig removeColdDataFlowCtrGroupConfig"
            " setCommitLogReadAheadMode resetMasterFlushOffset switchTimerEngine"
        ).split(),
        Counterpart("", similar="`admin.brokers` of the Python API, or `mqadmin` itself"),
    ),
}  # fmt: skip


CHOICES: Mapping[str, Mapping[str, str]] = {
    "permission": {"2": "w", "4": "r", "6": "rw"},
    "ordered": {"true": "--ordered", "false": ""},
    "enabled": {"true": "--enabled", "false": "--disabled"},
    "broadcast": {"true": "--broadcast", "false": "--no-broadcast"},
    "orderly": {"true": "--orderly", "false": "--concurrently"},
    "trace": {"true": "--trace", "false": ""},
    "decision": {"allow": "", "deny": "--deny"},
}
"""Forms that map values to words."""


class _DoesNotMap(Exception):
    """A value without a counterpart."""


def is_mqadmin(words: Sequence[str]) -> bool:
    """Return whether a command line is one of `mqadmin`.

    Of `producer` and `consumer`, which exist here too, those that begin with one of its options.
    """
    name = words[0]
    if name not in COUNTERPARTS:
        return False
    if name != name.lower():
        return True
    first = words[1] if len(words) > 1 else ""
    return _letters(COUNTERPARTS[name].options).get(first, "h") != "h"


def translate(words: Sequence[str]) -> list[str]:
    """The words of `skylark` for those of `mqadmin`. Raises UsageError if they do not map."""
    name, counterpart = words[0], COUNTERPARTS[words[0]]
    if not counterpart.templates:
        raise UsageError(f"mqadmin's {name} is not a command of skylark; use {counterpart.similar}")
    given, flags = _parse(name, counterpart.options, words[1:])
    if "h" in given:
        return [*_fixed_words(counterpart.templates[-1]), "--help"]
    templates = [
        template if "n/" in counterpart.options else template + NAMESRV_WORDS
        for template in counterpart.templates
    ]
    for template in templates:
        found = _fill(template, given)
        if found is not None:
            return [*found, *flags]
    known = {field[1] for template in templates for field in _FIELD.finditer(template)}
    unknown = [f"-{letter}" for letter in given if letter not in known]
    reason = f"no equivalent of {', '.join(unknown)}" if unknown else "its options differ"
    ways = " or ".join(f"`{usage(template, counterpart.options)}`" for template in counterpart.templates)
    raise UsageError(f"mqadmin's {name} is {ways}; nothing was done: {reason}")


def usage(template: str, options: str) -> str:
    """A template for the user: `skylark topic delete TOPIC [--cluster CLUSTERNAME]`."""
    names = {
        letter: "" if "!" in option else re.sub("(?<=[a-z])(?=[A-Z])", "-", name).upper()
        for option in options.split()
        for letter, name in [_split(option)]
    }

    def word(field: re.Match[str]) -> str:
        if field[3] in CHOICES:
            return "|".join(filter(None, CHOICES[field[3]].values()))
        return "" if field[2] == "==" or field[3] == "ignored" else names[field[1]]

    shown = " ".join(_FIELD.sub(word, template).replace("[]", "").split())
    return f"skylark {shown}".replace(" ]", "]")


def _split(option: str) -> tuple[str, str]:
    letter, _, name = option.rstrip("!~").partition("/")
    return letter, name


def _letters(options: str) -> dict[str, str]:
    """The letter of each option as it is written: `-t`, `--topic`, `-topic`."""
    found = {"-h": "h", "--help": "h", "-n": "n", "--namesrvAddr": "n", "-namesrvAddr": "n"}
    for letter, name in map(_split, options.split()):
        found |= {f"-{letter}": letter, f"--{name}": letter, f"-{name}": letter}
    return found


def _parse(name: str, options: str, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of options by letter, without those that make no difference, and flags of `skylark`."""
    letters = _letters(options)
    no_value = {"h", *(_split(option)[0] for option in options.split() if "!" in option)}
    ignored = {_split(option)[0] for option in options.split() if "~" in option}
    given: dict[str, str] = {}
    flags: list[str] = []
    rest = list(words)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        if word in OWN_FLAGS and not equals:
            flags.append(word)
            continue
        if word not in letters:
            raise UsageError(
                f"mqadmin's {name} has no option {word}; `skylark {name} -h` shows the new command"
            )
        letter = letters[word]
        if letter not in no_value and not equals:
            if not rest:
                raise UsageError(f"mqadmin's {name}: {word} needs a value")
            value = rest.pop(0)
        if letter not in ignored:
            given[letter] = value.strip()
    return given, flags


def _fixed_words(template: str) -> list[str]:
    """The name of the command: the words before the first option or argument."""
    words = template.split()
    ends = [number for number, word in enumerate(words) if word[0] in "{[-"]
    return words[: ends[0]] if ends else words


def _fill(template: str, given: Mapping[str, str]) -> list[str] | None:
    """The words of a template; None if an option is missing, does not map or is left over."""
    used: set[str] = set()
    filled: list[str] = []
    for part in _PART.finditer(template):
        words = (part[1] if part[1] is not None else part[2]).split()
        letters = {field[1] for word in words for field in _FIELD.finditer(word)}
        if part[1] is not None and not letters <= given.keys():
            continue
        if not letters <= given.keys():
            return None
        try:
            filled += [each for word in words for each in _fill_word(word, given)]
        except _DoesNotMap:
            return None
        used |= letters
    return filled if used == given.keys() else None


def _fill_word(word: str, given: Mapping[str, str]) -> list[str]:
    field = _FIELD.fullmatch(word)
    if field is None:
        return [_FIELD.sub(lambda inner: "".join(_value(given[inner[1]], inner[3])), word)]
    if field[2] == "==":
        if given[field[1]].lower() != field[3]:
            raise _DoesNotMap
        return []
    return _value(given[field[1]], field[3])


def _value(value: str, form: str | None) -> list[str]:
    """A value of `mqadmin` as words of `skylark`."""
    if (choice := CHOICES.get(form or "")) is not None:
        if value.lower() not in choice:
            raise _DoesNotMap
        return choice[value.lower()].split()
    match form:
        case "ignored":
            return []
        case "words":
            return value.split(",")
        case "time":
            found = _TIME.fullmatch(value)
            return [f"{found[1]} {found[2]}.{found[3]}" if found else value]
        case "user" if value.startswith(USER_PREFIX):
            return [value.removeprefix(USER_PREFIX)]
        case "name" if ":" in value:  # an address
            raise _DoesNotMap
        case "one" if "," in value:
            raise _DoesNotMap
        case _:
            return [value] if value else []
