"""A member of a group that can be killed: `python group_member.py HOST:PORT,... GROUP TOPIC`

Prints the number of its partitions whenever it is assigned some.
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer


def main(bootstrap: str, group: str, topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic], on_assign=lambda _, partitions: print(len(partitions), flush=True))
    while True:
        consumer.poll(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
