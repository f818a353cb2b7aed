"""What the authorizer reads from ZooKeeper at its start, and what it makes of content that is not Kafka's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.zookeeper.notifications import ChangeNotifications
from kce.zookeeper import security_nodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import PatternType, ResourcePattern, encode_acls
from kce.zookeeper.store import Create, SessionState, value
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.broker_stub.security.authorizers import add, authorizers, entry, known, literal, prefixed


async def test_what_is_malformed_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async with authorizers() as world:
        first = await world.start()
        await add(first, literal("good"), entry("Read"))
        await add(first, prefixed("g"), entry("Write"))
        bad = ("/kafka-acl/Topic/bad", b"{"), ("/kafka-acl/Planet", b""), ("/kafka-acl/Planet/earth", encode_acls([]))
        for path, data in bad:
            value((await world.zk.store.write([Create(path, data)]))[0])
        late = await world.start()
        assert known(late) == {entry("Read"), entry("Write")}
        assert "Planet" in caplog.text
        assert "/kafka-acl/Topic/bad" in caplog.text


async def test_more_resources_than_are_loaded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kce.broker_stub.zookeeper.acl_store._LOADED_AT_ONCE", 2)
    async with authorizers() as world:
        first = await world.start()
        for i in range(5):
            await add(first, literal(f"t{i}"), entry("Read", "Allow", f"User:{i}"))
        loaded: list[int] = []
        real = AclAuthorizer.load

        async def load(authorizer: AclAuthorizer, resources: Sequence[ResourcePattern]) -> None:
            loaded.append(len(resources))
            await real(authorizer, resources)

        monkeypatch.setattr(AclAuthorizer, "load", load)
        assert known(await world.start()) == {entry("Read", "Allow", f"User:{i}") for i in range(5)}
        assert loaded == [2, 2, 1]


@pytest.mark.parametrize(
    ("pattern", "data"),
    [
        (PatternType.LITERAL, b"nonsense"), (PatternType.LITERAL, b"Planet:earth"), (PatternType.PREFIXED, b"{"),
        (PatternType.PREFIXED, b'{"version":2,"resourceType":"TOPIC","name":"a","patternType":"PREFIXED"}'),
    ],
)  # fmt: skip
async def test_a_bad_notification_does_not_stop_the_next(pattern: PatternType, data: bytes) -> None:  # rule 1.36
    async with authorizers() as world:
        first, second = await world.start(), await world.start()
        value((await world.zk.store.write([Create(f"{pattern.changes}/acl_changes_", data, sequential=True)]))[0])
        await add(first, prefixed("g"), entry("Write"))
        await add(first, literal("good"), entry("Read"))
        await world.propagated()
        assert known(second) == {entry("Read"), entry("Write")}


async def test_changes_of_a_lost_session_are_read_in_the_next() -> None:
    async with authorizers() as world:
        first, second = await world.start(), await world.start()
        store = second._store._zk.store  # type: ignore[attr-defined]
        world.zookeeper.disconnect(store)
        await add(first, literal("good"), entry("Read"))
        await world.propagated()
        assert known(second) == set()
        world.zookeeper.reconnect(store)
        world.changes_of(second).session_changed(SessionState.ESTABLISHED)
        await world.propagated()
        assert known(second) == {entry("Read")}


async def test_the_last_entry_is_only_removed_if_nobody_has_added_another() -> None:  # rule B9.28
    async with authorizers() as world:
        first = await world.start()
        await add(first, literal("t"), entry("Read"))
        store = first._store
        assert await store.write(literal("t"), frozenset(), 0) is not None
        await add(first, literal("u"), entry("Read"))
        await add(first, literal("u"), entry("Write"))
        assert await store.write(literal("u"), frozenset(), 0) is None  # its version is 1
        assert known(await world.start()) == {entry("Read"), entry("Write")}


async def test_news_are_applied_before_it_has_started() -> None:  # rule B9.29
    server = MemoryZooKeeper()
    zk = KafkaZkClient(server.connect(), now_ms=lambda: 0)
    await security_nodes.create_acl_paths(zk)
    await security_nodes.notify_acl_change(zk, literal("t"))
    applied: list[bytes] = []

    async def changed(data: bytes) -> None:
        applied.append(data)

    async with trio.open_nursery() as nursery:
        await nursery.start(ChangeNotifications(zk, PatternType.LITERAL.changes, changed).run)
        assert applied == [b"TOPIC:t"]
        nursery.cancel_scope.cancel()
