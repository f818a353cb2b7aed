"""The columns of what the analyses give; docs/schema.md shows them with those of ``captures.rows``."""

from __future__ import annotations

import pyarrow as pa

from captures.rows import BROKER, FILE, INTS, SENDER, TIME, TIME_COLUMN, Column, Table, evidence

_BROKER = Column("broker", pa.string(), "broker id, or address where it is not known")
_PARTITION = (
    Column("topic", pa.string(), ""),
    Column("topic_id", pa.string(), "null in versions without topic ids"),
    Column("partition", pa.int32(), ""),
)
_SPAN = (Column("first_time", TIME, "of the first"), Column("last_time", TIME, "of the last"))

REQUESTS = Table(
    "requests",
    "Requests by API and version.",
    (
        Column("api_key", pa.int16(), ""),
        Column("api", pa.string(), ""),
        Column("version", pa.int16(), ""),
        Column("requests", pa.int64(), ""),
        Column("responses", pa.int64(), "how many of them were seen to be answered"),
        Column("errors", pa.int64(), "how many were answered with a top-level error"),
        Column("request_bytes", pa.int64(), ""),
        Column("response_bytes", pa.int64(), ""),
    ),
)

CONTROLLERS = Table(
    "controllers",
    "One controller in one epoch, by the control requests it sent.",
    (
        Column("controller_epoch", pa.int32(), ""),
        Column("controller_id", pa.int32(), ""),
        Column("is_kraft_controller", pa.bool_(), ""),
        Column("first_time", TIME, "of its first control request"),
        Column("last_time", TIME, "of its last"),
        Column("requests", pa.int64(), "control requests"),
        Column("brokers", pa.list_(pa.string()), "whom it reached: broker ids, or addresses where they are not known"),
        Column("decisions", pa.int64(), "partition states of its own epoch that it sent, each counted once"),
        Column("fenced", pa.int64(), "requests answered STALE_CONTROLLER_EPOCH"),
    ),
)

LEADERSHIP = Table(
    "leadership",
    "One change of a partition's leader, when it was first sent to any broker, in order.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        Column("topic", pa.string(), ""),
        Column("topic_id", pa.string(), ""),
        Column("partition", pa.int32(), ""),
        Column("from_leader", pa.int32(), "null for the first leader seen; -1 where there was none"),
        Column("to_leader", pa.int32(), "-1 where there is none any more, -2 where the partition was deleted"),
        Column("from_epoch", pa.int32(), "leader epoch before"),
        Column("to_epoch", pa.int32(), "leader epoch after; null where the partition was deleted"),
        Column("isr", INTS, "after the change"),
        Column("decision_epoch", pa.int32(), "epoch of the controller that decided it"),
    ),
)

LATENCY = Table(
    "latency",
    "Time from request to response, by API, version and listener.",
    (
        Column("api_key", pa.int16(), ""),
        Column("api", pa.string(), ""),
        Column("version", pa.int16(), ""),
        BROKER[1],
        Column("requests", pa.int64(), "those answered"),
        Column("p50_ms", pa.float64(), ""),
        Column("p90_ms", pa.float64(), ""),
        Column("p99_ms", pa.float64(), ""),
        Column("max_ms", pa.float64(), ""),
    ),
)

FENCED = Table(
    "fenced",
    "Requests refused as a whole for a stale epoch, by sender and refusing broker.",
    (
        Column("error", pa.string(), "STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH"),
        *SENDER,
        Column("sender_broker_id", pa.int32(), "the sender, if it is no controller"),
        Column("broker", pa.string(), "who refused: broker id, or address where it is not known"),
        Column("api", pa.string(), ""),
        Column("requests", pa.int64(), ""),
        Column("first_time", TIME, "of the first such request"),
        Column("last_time", TIME, "of the last"),
        *evidence("the requests' packets, in order"),
    ),
)

STALE_PARTITIONS = Table(
    "stale_partitions",
    "STALE_CONTROLLER_EPOCH inside LeaderAndIsr answers that were not refused as a whole: the broker has that leader "
    "epoch already (rules 9.18, 9.19). No sign of a zombie.",
    (
        *SENDER,
        Column("broker", pa.string(), "who answered"),
        Column("requests", pa.int64(), ""),
        Column("partitions", pa.int64(), ""),
    ),
)

ZOMBIES = Table(
    "zombies",
    "A controller that sent control requests after a later epoch had begun on the wire, and was refused for it.",
    (
        *SENDER,
        Column("later_epoch", pa.int32(), "the latest epoch that had begun by then"),
        Column("requests", pa.int64(), "how many were refused with STALE_CONTROLLER_EPOCH"),
        Column("first_time", TIME, "of the first such request"),
        Column("last_time", TIME, "of the last"),
        Column("brokers", pa.list_(pa.string()), "who refused, in the order of the requests"),
        *evidence("the requests' packets, in order"),
    ),
)

OVERLAPS = Table(
    "overlaps",
    "Two controllers at once: control requests that one sent after another's later epoch had begun on the wire, "
    "refused or not. (In one epoch there is one controller: two ids in one epoch are here, too.)",
    (
        *SENDER,
        Column("later_id", pa.int32(), "the other controller"),
        Column("later_epoch", pa.int32(), "its epoch"),
        Column("requests", pa.int64(), "how many of the earlier one came after that"),
        Column("refused", pa.int64(), "how many of them a broker answered STALE_CONTROLLER_EPOCH"),
        *_SPAN,
        *evidence("these requests' packets, in order"),
    ),
)

CHURN = Table(
    "churn",
    "A partition that changed its leader after its first.",
    (
        *_PARTITION,
        Column("changes", pa.int64(), "how often another leader, or none, was announced"),
        Column("leaders", INTS, "all leaders it had, -1 for none"),
        Column("leaderless_ms", pa.float64(), "how long it was announced to have none"),
        *_SPAN,
        *evidence("packets that announced the changes first, in order"),
    ),
)

UNCLEAN_ELECTIONS = Table(
    "unclean_elections",
    "A leader that was not in sync: it is missing in the ISR of the state before.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        *_PARTITION,
        Column("leader", pa.int32(), "who was elected"),
        Column("leader_epoch", pa.int32(), ""),
        Column("isr_before", INTS, "who was in sync"),
        Column("decision_epoch", pa.int32(), "epoch of the controller that decided it"),
    ),
)

ISR_CHANGES = Table(
    "isr_changes",
    "One change of a partition's in-sync replicas, when it was first sent to any broker, in order.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        *_PARTITION,
        Column("from_isr", INTS, ""),
        Column("to_isr", INTS, ""),
        Column("left", INTS, "who fell out"),
        Column("joined", INTS, "who came in"),
        Column("leader_epoch", pa.int32(), ""),
        Column("partition_epoch", pa.int32(), "version of the state in ZooKeeper"),
    ),
)

ISR_STORMS = Table(
    "isr_storms",
    "At least ten ISR changes, none more than ten seconds after the one before.",
    (
        *_SPAN,
        Column("changes", pa.int64(), ""),
        Column("shrinks", pa.int64(), "changes in which a replica fell out"),
        Column("expansions", pa.int64(), "changes in which one came in"),
        Column("partitions", pa.int64(), "how many partitions were concerned"),
        Column("brokers", INTS, "whose replicas fell out"),
        *evidence("packets that announced the changes first, in order"),
    ),
)

BOUNCES = Table(
    "bounces",
    "A broker that came back: its epoch rose, or (before brokers had epochs, Kafka 2.2) UpdateMetadata named it again.",
    (
        Column("broker_id", pa.int32(), ""),
        Column("from_epoch", pa.int64(), "its broker epoch before; null where that is not known"),
        Column("to_epoch", pa.int64(), "and after"),
        Column("last_time", TIME, "when it was last addressed, or named, as it was before"),
        Column("back_time", TIME, "when it was first addressed, or named, anew"),
        FILE,
        Column("packet", pa.int64(), "number of the packet that does so"),
    ),
)

CONTROL_BEHIND_DATA = Table(
    "control_behind_data",
    "A listener that takes control requests and others: what KIP-291 keeps apart.",
    (
        _BROKER,
        BROKER[1],
        Column("control_requests", pa.int64(), ""),
        Column("data_requests", pa.int64(), "all others"),
        Column(
            "behind", pa.int64(), "control requests that came while others, Fetch and JoinGroup aside, had no answer"
        ),
        Column("most_ahead", pa.int64(), "how many of those there were at most"),
        Column("shared_connections", pa.int64(), "connections that carried both"),
        *evidence("packets of the control requests that came behind others, in order"),
    ),
)

METADATA_COST = Table(
    "metadata_cost",
    "What UpdateMetadata requests of one controller epoch cost, for what they told.",
    (
        *SENDER,
        Column("requests", pa.int64(), ""),
        Column("request_bytes", pa.int64(), ""),
        Column("states", pa.int64(), "partition states in them"),
        Column("changes", pa.int64(), "different ones among them"),
        Column("bytes_per_change", pa.float64(), "null where they told no state"),
    ),
)

PROPAGATION = Table(
    "propagation",
    "How long a broker waited for UpdateMetadata of a new leader epoch, from the first request that told anybody.",
    (
        _BROKER,
        Column("states", pa.int64(), "leader epochs that it was told of"),
        Column("p50_ms", pa.float64(), ""),
        Column("p99_ms", pa.float64(), ""),
        Column("max_ms", pa.float64(), ""),
        *evidence("the packet that told it last of all"),
    ),
)

DISAGREEMENTS = Table(
    "disagreements",
    "One leader epoch of a partition for which LeaderAndIsr and UpdateMetadata requests name different leaders.",
    (
        *_PARTITION,
        Column("leader_epoch", pa.int32(), ""),
        Column("in_leader_and_isr", INTS, "leaders by LeaderAndIsr"),
        Column("in_update_metadata", INTS, "leaders by UpdateMetadata"),
        *_SPAN,
        *evidence("packets of these requests, in order"),
    ),
)

RESENDS = Table(
    "resends",
    "A control request that was sent more than once to one broker, with the same content and epochs.",
    (
        Column("api", pa.string(), ""),
        _BROKER,
        *SENDER,
        Column("requests", pa.int64(), "how often it was sent"),
        Column(
            "unanswered", pa.int64(), "how many of these have no answer in the capture, so that they had to be resent"
        ),
        *_SPAN,
        *evidence("the requests' packets, in order"),
    ),
)

UNANSWERED = Table(
    "unanswered",
    "Requests that Kafka answers and that have no answer in the capture.",
    (
        Column("api_key", pa.int16(), ""),
        Column("api", pa.string(), ""),
        _BROKER,
        Column("client_id", pa.string(), ""),
        Column("requests", pa.int64(), ""),
        *_SPAN,
        *evidence("the requests' packets, in order"),
    ),
)

REBALANCES = Table(
    "rebalances",
    "A consumer group, by its JoinGroup, SyncGroup and LeaveGroup requests.",
    (
        Column("group_id", pa.string(), ""),
        Column("generations", pa.int64(), "how many different ones JoinGroup responses gave"),
        Column("joins", pa.int64(), "JoinGroup requests"),
        Column("leaves", pa.int64(), "LeaveGroup requests"),
        Column("most_in_a_minute", pa.int64(), "generations that began within 60 seconds; a storm from five on"),
        *_SPAN,
        *evidence("packets of the JoinGroup requests, in order"),
    ),
)

REGRESSIONS = Table(
    "regressions",
    "An epoch that went down, in the order in which one broker got its requests: it never should.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the request's packet"),
        Column("epoch", pa.string(), "controller_epoch or leader_epoch"),
        _BROKER,
        Column("api", pa.string(), ""),
        Column("topic", pa.string(), "null for controller_epoch"),
        Column("partition", pa.int32(), "null for controller_epoch"),
        Column("highest", pa.int32(), "the highest epoch that the broker had got"),
        Column("found", pa.int32(), "the one that it got after that"),
        Column("refused", pa.bool_(), "whether the broker refused the request as a whole"),
    ),
)

TRANSPORT = Table(
    "transport",
    "A Kafka connection with retransmitted segments, or that was reset.",
    (
        Column("connection", pa.string(), ""),
        Column("segments", pa.int64(), ""),
        Column("retransmits", pa.int64(), ""),
        Column("out_of_order", pa.int64(), ""),
        Column("resets", pa.int64(), ""),
        *_SPAN,
        *evidence("packets that were retransmitted or reset it, in order"),
    ),
)

ANALYSES = (
    REQUESTS, CONTROLLERS, LEADERSHIP, LATENCY, FENCED, STALE_PARTITIONS, ZOMBIES, OVERLAPS, CHURN, UNCLEAN_ELECTIONS,
    ISR_CHANGES, ISR_STORMS, BOUNCES, CONTROL_BEHIND_DATA, METADATA_COST, PROPAGATION, DISAGREEMENTS, RESENDS,
    UNANSWERED, REBALANCES, REGRESSIONS, TRANSPORT,
)  # fmt: skip
