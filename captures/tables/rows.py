"""The one definition of the columns of packets, frames, exchanges, partitions, endpoints and connections.

Tables of analyses are in ``captures.spark.analyses``; ``docs/schema.md`` is generated from both. Spark schemas are
derived from here, and ``kce analyze --out`` writes the version beside its Parquet. Raise ``SCHEMA_VERSION`` when a
column changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

SCHEMA_VERSION = 6

#: Packets that a row lists; others are only counted.
MAX_EVIDENCE = 100

TIME = pa.timestamp("us", tz="UTC")
INTS = pa.list_(pa.int32())


class Column(NamedTuple):
    name: str
    type: pa.DataType
    doc: str


class Table(NamedTuple):
    """A named schema. ``doc`` describes one row."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.type) for column in self.columns])

    def of(self, names: Collection[str] | None) -> Table:
        """The table with these columns only; None means all."""
        return self if names is None else self._replace(columns=tuple(c for c in self.columns if c.name in names))

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        """Rows in the order of the columns, as Arrow."""
        values = zip(*rows, strict=True) if rows else [()] * len(self.columns)
        arrays = [pa.array(v, column.type) for v, column in zip(values, self.columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


FILE = Column("file", pa.string(), "the capture, as it was named")
TIME_COLUMN = Column("time", TIME, "when the packet was captured, UTC")
_CONNECTION = Column("connection", pa.string(), "both endpoints, the same text for both directions")
_CORRUPT = Column("_corrupt_record", pa.string(), "what is wrong with a file; such a row is nothing else")
SENDER = (
    Column("controller_id", pa.int32(), "id of the controller that sent it"),
    Column("controller_epoch", pa.int32(), "its epoch"),
)
BROKER = (
    Column("broker_id", pa.int32(), "the receiving broker, as announced by UpdateMetadata; null if unknown"),
    Column("listener", pa.string(), "the listener's name, or its port if unknown"),
)

BROKER_TEXT = Column("broker", pa.string(), "broker id, or address if unknown")
PARTITION = (
    Column("topic", pa.string(), ""),
    Column("topic_id", pa.string(), "null in versions without topic ids"),
    Column("partition", pa.int32(), ""),
)
SPAN = (Column("first_time", TIME, "of the first"), Column("last_time", TIME, "of the last"))

_PEERS = (
    Column("client", pa.string(), "IP address"),
    Column("client_port", pa.int32(), ""),
    Column("server", pa.string(), "IP address"),
    Column("server_port", pa.int32(), ""),
)
_API = (
    Column("api_key", pa.int16(), ""),
    Column("api", pa.string(), "Kafka's name of it; Unknown(n) for an unknown key"),
    Column("version", pa.int16(), ""),
    Column("correlation_id", pa.int32(), ""),
)


def evidence_columns(doc: str, prefix: str = "") -> tuple[Column, Column]:
    """Packets that show it, and the file of each. At most MAX_EVIDENCE."""
    return (
        Column(f"{prefix}packets", pa.list_(pa.int64()), doc),
        Column(f"{prefix}files", pa.list_(pa.string()), "the file of each of these packets"),
    )


PACKETS = Table(
    "packets",
    "One packet of a capture. Columns from `connection` on are null for other packets than TCP segments.",
    (
        FILE,
        Column("packet", pa.int64(), "its number, from 1, as in Wireshark; in a `_corrupt_record` row the last read"),
        TIME_COLUMN,
        Column("time_ns", pa.int64(), "the same in nanoseconds since 1970"),
        Column("other", pa.string(), "what it is if no TCP segment: UDP, ARP, a truncated header, ..."),
        _CONNECTION,
        Column("source", pa.string(), "IP address"),
        Column("source_port", pa.int32(), ""),
        Column("destination", pa.string(), "IP address"),
        Column("destination_port", pa.int32(), ""),
        Column("sequence", pa.int64(), "TCP sequence number"),
        Column("acknowledgement", pa.int64(), "TCP acknowledgement number"),
        Column("flags", pa.int16(), "TCP flags: FIN 1, SYN 2, RST 4, PSH 8, ACK 16"),
        Column("payload", pa.binary(), "the captured data of the segment"),
        Column("cut", pa.int32(), "bytes of its data that the snap length cut off"),
        _CORRUPT,
    ),
)

FRAMES = Table(
    "frames",
    "One request or response, in the order of completion within a connection.",
    (
        FILE,
        Column("packet", pa.int64(), "number of the packet that completes it"),
        TIME_COLUMN,
        _CONNECTION,
        *_PEERS,
        Column("is_response", pa.bool_(), ""),
        *_API,
        Column("client_id", pa.string(), ""),
        Column("frame_bytes", pa.int32(), "without the length field"),
        Column("request_file", pa.string(), "of a response: file of its request's last packet"),
        Column("request_packet", pa.int64(), "of a response: number of the packet that completes its request"),
        Column("error_code", pa.int16(), "of a response: its top-level error; null if it has none"),
        Column(
            "decode_error", pa.string(), "why the body was not decoded; null if it was, or if its API is unknown here"
        ),
        Column("body", pa.string(), "the body as `kce decode --json` writes it; null without option `bodies`"),
    ),
)

PARTITION_STATE = (
    *PARTITION,
    Column("decision_epoch", pa.int32(), "epoch of the controller that decided this state; null in StopReplica"),
    Column("leader", pa.int32(), "broker id; -1 none, -2 the partition is being deleted (rule 8.9)"),
    Column("leader_epoch", pa.int32(), ""),
    Column("isr", INTS, ""),
    Column("partition_epoch", pa.int32(), "the version of the state in ZooKeeper"),
    Column("replicas", INTS, ""),
    Column("adding_replicas", INTS, "LeaderAndIsr from version 3 on"),
    Column("removing_replicas", INTS, "LeaderAndIsr from version 3 on"),
    Column("offline_replicas", INTS, "UpdateMetadata from version 4 on"),
    Column("is_new", pa.bool_(), "LeaderAndIsr from version 1 on"),
    Column("delete", pa.bool_(), "StopReplica: whether the broker deletes the replica"),
    Column("error_code", pa.int16(), "error in the response for this partition; null if there is none"),
    Column("error", pa.string(), "Kafka's name of it"),
)
LIVE_BROKER = (
    Column("broker_id", pa.int32(), ""),
    Column("listener", pa.string(), "its name; before UpdateMetadata 3 that of the protocol"),
    Column("host", pa.string(), "as announced"),
    Column("port", pa.int32(), ""),
    Column("rack", pa.string(), ""),
)

EXCHANGES = Table(
    "exchanges",
    "One request with its response. Columns from `response_file` on are null without a captured response.",
    (
        Column("file", pa.string(), "file of the request's last packet"),
        Column("packet", pa.int64(), "number of the packet that completes the request"),
        TIME_COLUMN,
        _CONNECTION,
        *_PEERS,
        *_API,
        Column("client_id", pa.string(), ""),
        Column("request_bytes", pa.int32(), "without the length field"),
        Column(
            "request_error", pa.string(), "why the body was not decoded; null if it was, or if its API is unknown here"
        ),
        Column("answered", pa.bool_(), "whether Kafka sends a response: false for Produce with acks=0"),
        Column("is_control", pa.bool_(), "LeaderAndIsr, StopReplica or UpdateMetadata"),
        *SENDER,
        Column("is_kraft_controller", pa.bool_(), "whether the sender is a KRaft controller"),
        Column("sender_broker_id", pa.int32(), "the sender of ControlledShutdown, AlterPartition, AllocateProducerIds"),
        Column("broker_epoch", pa.int64(), "of the receiver in control requests, of the sender in these three"),
        Column("partition_count", pa.int32(), "number of partitions in a control request"),
        Column("group_id", pa.string(), "the consumer group of the request, if any"),
        Column(
            "generation_id", pa.int32(), "generation of the group, from the request or, for JoinGroup, the response"
        ),
        Column("response_file", pa.string(), "file of the response's last packet"),
        Column("response_packet", pa.int64(), "number of the packet that completes the response"),
        Column("response_time", TIME, ""),
        Column("response_bytes", pa.int32(), ""),
        Column("response_error", pa.string(), "why the body was not decoded"),
        Column("latency_ms", pa.float64(), "from the request's last packet to the response's"),
        Column("error_code", pa.int16(), "top-level error of the response; null if it has none or was not decoded"),
        Column("error", pa.string(), "Kafka's name of it"),
        Column(
            "partition_errors", pa.int32(), "number of errors below the top level of the response, as of partitions"
        ),
    ),
)

PARTITIONS = Table(
    "partitions",
    "One partition in one LeaderAndIsr, UpdateMetadata or StopReplica request.",
    (
        FILE,
        Column("packet", pa.int64(), "number of the packet that completes the request"),
        TIME_COLUMN,
        _CONNECTION,
        *_API[:3],
        Column("server", pa.string(), "IP address of the receiver"),
        Column("server_port", pa.int32(), ""),
        *SENDER,
        Column("response_error_code", pa.int16(), "top-level error of the response; null if none was seen"),
        *PARTITION_STATE,
    ),
)

ENDPOINTS = Table(
    "endpoints",
    "One listener of one broker, as UpdateMetadata requests announced it.",
    (
        *LIVE_BROKER,
        Column("first_time", TIME, "when it was first announced"),
        Column("last_time", TIME, "when it was last announced"),
    ),
)

CONNECTIONS = Table(
    "connections",
    "One pair of TCP endpoints: one connection, or several that reused the ports. Kafka or not.",
    (
        _CONNECTION,
        Column("is_kafka", pa.bool_(), "whether requests were recognised in it"),
        Column("first_time", TIME, "of its first packet"),
        Column("last_time", TIME, "of its last"),
        Column("segments", pa.int64(), "as captured: on several interfaces (`-i any`) a segment counts on each"),
        Column("payload_bytes", pa.int64(), "likewise, including retransmissions"),
        Column("retransmits", pa.int64(), "segments with data sent before, but no copies: the last one within 1 ms"),
        Column("out_of_order", pa.int64(), "segments that filled a hole"),
        Column("resets", pa.int64(), "segments with RST"),
        Column("end", pa.string(), "FIN or RST, the first since the last SYN; null if none was captured"),
        Column("end_time", TIME, ""),
        Column("end_packet", pa.int64(), ""),
        Column("end_file", pa.string(), ""),
        Column("end_address", pa.string(), "IP address of the side that sent it"),
        Column("end_port", pa.int32(), ""),
        *evidence_columns("the first packets that were retransmitted"),
        *evidence_columns("the first packets that reset it", "reset_"),
    ),
)

#: an error in a response; topic and partition are null at the top level
ERROR = (
    Column("topic", pa.string(), ""),
    Column("partition", pa.int32(), ""),
    Column("error_code", pa.int16(), ""),
)

#: a partition that a request names
NAMED = (
    Column("topic", pa.string(), "its name, or its id in versions without names"),
    Column("partition", pa.int32(), ""),
)

#: output of reassembly: exchanges with their contents; rows with only ``tcp``, one per connection; a row with only
#: ``quality`` per task
DECODED = Table(
    "decoded",
    "",
    (
        *EXCHANGES.columns,
        Column("states", pa.list_(pa.struct([(c.name, c.type) for c in PARTITION_STATE])), ""),
        Column("live_brokers", pa.list_(pa.struct([(c.name, c.type) for c in LIVE_BROKER])), ""),
        Column("errors", pa.list_(pa.struct([(c.name, c.type) for c in ERROR])), ""),
        Column(
            "hit",
            pa.list_(pa.struct([(c.name, c.type) for c in NAMED])),
            "partitions of a Produce or Fetch request that failed, was late or got no response",
        ),
        Column("evidence", pa.string(), ""),
        Column("tcp", pa.struct([(c.name, c.type) for c in CONNECTIONS.columns]), ""),
        Column("quality", pa.string(), ""),
    ),
)

#: output of reassembly where connections are cut: the bucket of the chunk, if any; rows with only ``bucket`` and
#: ``chunk``, one per chunk (``captures.spark.chunks``)
CHUNKED = DECODED._replace(
    columns=(*DECODED.columns, Column("bucket", pa.int32(), ""), Column("chunk", pa.string(), ""))
)

#: the shuffle between reading and reassembly: segments of one bucket of connections (``captures.fast.divided``); a row
#: with only ``quality`` per task
BLOCKS = Table(
    "blocks",
    "",
    (
        Column("bucket", pa.int32(), ""),
        Column("begin_ns", pa.int64(), ""),
        Column("number", pa.int32(), "of the file, among all of them"),
        Column("packet", pa.int64(), ""),
        FILE,
        Column("rows", pa.binary(), ""),
        Column("flows", pa.binary(), ""),
        Column("payload", pa.binary(), ""),
        Column("quality", pa.string(), ""),
    ),
)

TABLES = (PACKETS, FRAMES, EXCHANGES, PARTITIONS, ENDPOINTS, CONNECTIONS)

#: tables written by `kce analyze --out`
WRITTEN = (EXCHANGES, PARTITIONS, ENDPOINTS, CONNECTIONS)

#: tables of the data source, by its option ``level``
LEVELS = {
    "packets": PACKETS,
    **{t.name: t._replace(columns=(*t.columns, _CORRUPT)) for t in (FRAMES, EXCHANGES, PARTITIONS)},
}
