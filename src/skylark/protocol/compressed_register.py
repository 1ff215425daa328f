"""The compressed body of broker registration: a zlib stream of length-prefixed JSON texts."""

import struct
from collections.abc import Iterator
from typing import cast

from zlib_ng import zlib_ng

from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_body,
)
from skylark.protocol.command import Buffer

ZlibError = cast("type[Exception]", zlib_ng.error)
_COUNT = struct.Struct(">i")
_INFLATED_BYTES_MAX = 64 << 20  # a small stream may claim to be anything
MAPPING_VERSION_MIN = 413  # 5.0.0 appends the mappings of static topics


def decode_compressed_register(data: Buffer, version: int) -> RegisterBrokerBody:
    """Read what a broker of this version sent with `compressed=true`. Raises RemoteProtocolError."""
    try:
        texts = _Texts(_inflate(data))
        table = TopicConfigTable(data_version=decode_body(texts.text(), DataVersion))
        for topic in map(_topic, texts.counted()):
            table.topic_config_table[topic.topic_name] = topic
        filter_servers = decode_body(texts.text(), list[str])
        if version >= MAPPING_VERSION_MIN:
            infos = [decode_body(text, dict) for text in texts.counted()]
            table.topic_queue_mapping_info_map = {str(info.get("topic")): info for info in infos}
    except (struct.error, ValueError, ZlibError) as error:
        raise RemoteProtocolError(f"compressed registration: {error}") from None
    return RegisterBrokerBody(topic_config_serialize_wrapper=table, filter_server_list=filter_servers)


def _inflate(data: Buffer) -> bytes:
    stream = zlib_ng.decompressobj()
    inflated: bytes = stream.decompress(data, _INFLATED_BYTES_MAX)
    if not stream.eof:
        raise ValueError(f"stream is cut off or inflates to more than {_INFLATED_BYTES_MAX} bytes")
    return inflated


def _topic(text: bytes) -> TopicConfig:
    """`name readQueues writeQueues perm filterType [attributes]`."""
    name, read, write, perm, filter_type, *rest = text.decode().split(" ", 5)
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(read),
        write_queue_nums=int(write),
        perm=int(perm),
        topic_filter_type=filter_type,
        attributes=decode_body(rest[0].encode(), dict[str, str]) if rest and rest[0] else {},
    )


class _Texts:
    """Reads texts and counts one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def text(self) -> bytes:
        start = self._position + _COUNT.size
        end = start + self._count()
        if not start <= end <= len(self._data):
            raise ValueError(f"text of {end - start} bytes at {start} of {len(self._data)}")
        self._position = end
        return self._data[start:end]

    def counted(self) -> Iterator[bytes]:
        for _ in range(self._count()):
            yield self.text()

    def _count(self) -> int:
        (count,) = _COUNT.unpack_from(self._data, self._position)
        self._position += _COUNT.size
        return int(count)
