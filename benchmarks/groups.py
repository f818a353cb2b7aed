"""Consumer groups, transactions and secured connections of our node and of real Kafka 3.9.1, by one client, in turn.

    python -m benchmarks.groups [--seconds 3] [--repeats 3] [--only PART ...] [--json FILE]

    group/join-3          three members join an empty group at once: until all have their assignments
    group/leave           one of three leaves: until the two others have theirs
    group/members-1000    a thousand members join an empty group at once
    group/groups-10000    ten thousand groups: one member joins, gets its assignment and sends a heartbeat; 32 at a time
    offset-commits/s      OffsetCommit of one partition, 8 connections with 16 requests under way
    transactions/s        transactions of one record by librdkafka, of 4 producers at a time
    tls/connections       connections with a whole TLS handshake (1.3, a certificate of RSA 2048) and one request, 4 at
                          a time
    scram/connections     connections with a login by SCRAM-SHA-256 (4,096 iterations) and one request, 4 at a time

One broker each, a process of its own with its log on the same disk, in the same ZooKeeper, with the same settings:
`group.initial.rebalance.delay.ms` 0, 10 partitions of both internal topics.
The client speaks the protocol itself (but for transactions), sends heartbeats as soon as others come or go, and joins
again as soon as one says so. Kafka is warm: a first repeat is not counted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from trustme import KeyType

from benchmarks import broker_load, group_load, secured_load
from benchmarks.broker import elsewhere
from benchmarks.broker_load import Address
from benchmarks.records import JVM
from benchmarks.rows import KAFKA, Row, report
from kce.harness.cluster import Cluster
from kce.harness.embedded_zookeeper import embedded_zookeeper, free_port
from kce.harness.guard import Guard
from tests.certificates import Authority
from tests.interop.real_kafka import real_brokers

OURS: Final = "ours"
PRODUCERS: Final = 4
LISTENERS: Final = ("CONTROL", "DATA", "TLS", "SCRAM")
SETTINGS: Final = {
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT,TLS:SSL,SCRAM:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.scram.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "10",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "10",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "replica.lag.time.max.ms": "30000",
    "zookeeper.session.timeout.ms": "30000",
}


@dataclass(frozen=True)
class Server:
    """Addresses by listener, and the authority that has signed its certificate, in PEM."""

    addresses: Mapping[str, Address]
    trusted: str

    @property
    def data(self) -> Address:
        return self.addresses["DATA"]


@asynccontextmanager
async def servers() -> AsyncIterator[dict[str, Server]]:
    authority = Authority(KeyType.RSA)
    with tempfile.TemporaryDirectory() as name, closing(Guard()) as guard:
        folder = Path(name)
        settings = SETTINGS | authority.files(folder, authority.node)
        ports = {listener: free_port() for listener in LISTENERS}
        async with embedded_zookeeper(folder / "zookeeper", guard) as zookeeper:
            cluster = Cluster(
                1,
                processes=True,
                zookeeper=f"{zookeeper}/ours",
                data=folder,
                log_level="ERROR",
                properties=settings | {"listeners": _listeners(dict.fromkeys(LISTENERS, 0))},
            )
            given = settings | dict.fromkeys(("listeners", "advertised.listeners"), _listeners(ports))
            theirs: Any = {key.replace(".", "_"): value for key, value in given.items()}
            async with cluster, real_brokers([1], f"{zookeeper}/kafka", folder, jvm=JVM, **theirs):
                await cluster.wait_for_controller()
                ours = {listener: _address(text) for listener, text in cluster.member(1).addresses.items()}
                kafka = {listener: ("127.0.0.1", port) for listener, port in ports.items()}
                found = {name: Server(of, authority.trusted) for name, of in ((OURS, ours), (KAFKA, kafka))}
                for server in found.values():
                    await elsewhere(group_load.prepare, server.data, PRODUCERS)
                    await elsewhere(secured_load.create_user, server.data)
                yield found


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{listener}://127.0.0.1:{port}" for listener, port in ports.items())


def _address(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    return host, int(port)


async def _three(server: Server, args: argparse.Namespace) -> dict[str, float]:
    joined, left = await elsewhere(group_load.three, server.data, 20)
    return {"group/join-3": joined * 1e3, "group/leave": left * 1e3}


async def _one(name: str, function: Callable[..., Any], server: Server, args: argparse.Namespace) -> dict[str, float]:
    return {name: await elsewhere(function, server.data)}


async def _commits(server: Server, args: argparse.Namespace) -> dict[str, float]:
    rate = await elsewhere(broker_load.hammer, server.data, 8, 16, args.seconds, group_load.COMMIT)
    return {"offset-commits/s": rate}


async def _transactions(server: Server, args: argparse.Namespace) -> dict[str, float]:
    return {"transactions/s": await elsewhere(group_load.transactions, server.data, PRODUCERS, args.seconds)}


async def _tls(server: Server, args: argparse.Namespace) -> dict[str, float]:
    rate = await elsewhere(secured_load.tls, server.addresses["TLS"], args.seconds, server.trusted)
    return {"tls/connections": rate}


async def _scram(server: Server, args: argparse.Namespace) -> dict[str, float]:
    rate = await elsewhere(secured_load.scram_logins, server.addresses["SCRAM"], args.seconds)
    return {"scram/connections": rate}


#: unit, and whether less is better
ROWS: Final = {
    "group/join-3": ("ms", True),
    "group/leave": ("ms", True),
    "group/members-1000": ("s", True),
    "group/groups-10000": ("s", True),
    "offset-commits/s": ("1/s", False),
    "transactions/s": ("1/s", False),
    "tls/connections": ("1/s", False),
    "scram/connections": ("1/s", False),
}
PARTS: Final[Mapping[str, Callable[[Server, argparse.Namespace], Awaitable[dict[str, float]]]]] = {
    "three": _three,
    "members": partial(_one, "group/members-1000", partial(group_load.large, size=1000)),
    "groups": partial(_one, "group/groups-10000", partial(group_load.many, groups=10_000, connections=32)),
    "commits": _commits,
    "transactions": _transactions,
    "tls": _tls,
    "scram": _scram,
}

#: runs of a part that are not measured, because Java is not warm: one, if it is not here
WARM_UPS: Final = {"groups": 3}


async def measure(args: argparse.Namespace) -> list[Row]:
    rows: dict[str, Row] = {}
    async with servers() as known:
        for part in args.only:
            for server in [*known.values()] * WARM_UPS.get(part, 1):
                await PARTS[part](server, args)
        for part in [*args.only] * args.repeats:
            for name, server in known.items():
                for row_name, value in (await PARTS[part](server, args)).items():
                    unit, less = ROWS[row_name]
                    row = rows.setdefault(row_name, Row(row_name, unit, KAFKA, less=less))
                    (row.values if name == OURS else row.peer_values).append(value)
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long what is counted a second takes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    report(trio.run(measure, args), args.json)


if __name__ == "__main__":
    main()
