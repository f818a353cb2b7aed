"""All that a server in memory answers two clients, what they hear, and what it keeps."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from trio.testing import MockClock

from kce.zookeeper.store import (
    CREATOR_ALL_ACL,
    OPEN_ACL,
    READ_ACL,
    Acls,
    Check,
    Create,
    Delete,
    Op,
    SetData,
)
from tests import transcripts
from tests.transcripts import RecordedStore, RecordedZooKeeper
from tests.zookeeper.scripts import Script

FOLDER = Path(__file__).parent / "transcripts"


async def server(script: Script) -> None:
    """A server in memory and two clients, with their watches, sessions and access control lists."""
    clock = itertools.count(100)
    made = RecordedZooKeeper()
    made.tree._now_ms = lambda: next(clock)
    closed: Acls = (*CREATOR_ALL_ACL, *READ_ACL)
    one = made.connect(auth=[("digest", "a:b")], acls_of=lambda path: closed if "secret" in path else OPEN_ACL)
    two = made.connect(session_timeout_ms=4000)
    for name, store in (("one", one), ("two", two)):
        store.on_watch = lambda event, n=name: script.lines.append(f"{n} hears {event}")  # type: ignore[misc]
        store.on_session = lambda state, n=name: script.lines.append(f"{n} is {state}")  # type: ignore[misc]
    note = script.note

    async def step(name: str, what: Callable[[], Awaitable[object]]) -> None:
        await note(name, what)
        for path, node in sorted(made.tree.nodes.items()):
            line = f"node {path} {node.data!r} {node.acls} {node.stat()} {sorted(node.children)}"
            if known.get(path) != line:
                script.lines.append(line)
            known[path] = line
        for path in sorted(known.keys() - made.tree.nodes.keys()):
            script.lines.append(f"no {path}")
            del known[path]

    known: dict[str, str] = {}
    await step("make", lambda: one.write([Create("/a", b"x"), Create("/a/b"), Create("/none/c"), Create("/a")]))
    await step("watch", lambda: two.exists(["/a", "/e"], watch=True))
    await step("watch data", lambda: two.get_data(["/a/b", "/none"], watch=[True, True]))
    await step("watch children", lambda: two.get_children(["/a", "/none"], watch=True))
    await step("ephemeral", lambda: one.write([Create("/e", b"", ephemeral=True), Create("/e/x")]))
    await step("sequential", lambda: one.write([Create("/a/s-", sequential=True)] * 2))
    await step(
        "both", lambda: one.write([Create("/a/s-", ephemeral=True, sequential=True), Create("/k", container=True)])
    )
    await step(
        "set",
        lambda: one.write([SetData("/a", b"y"), SetData("/a", b"z", 0), SetData("/a", b"z", 1), SetData("/q", b"")]),
    )
    await step("delete", lambda: one.write([Delete("/a"), Delete("/a/b", 5), Delete("/a/b", 0), Delete("/a/b")]))
    await step("fenced", lambda: one.write([Create("/f")], fence=Check("/a", 2)))
    await step("not fenced", lambda: one.write([Create("/g")], fence=Check("/a", 1)))
    groups = [
        [Create("/m"), SetData("/m", b"1"), Check("/a", 2), Delete("/m")],
        [Create("/n"), Create("/n/o"), SetData("/a", b"undone"), Delete("/a/s-0000000001"), Check("/a", 9)],
        [Create("/n")],
    ]
    await step("multi", lambda: one.multi(groups))
    await step("too large", lambda: one.write([SetData("/a", bytes(5_000_000))]))
    await step("secret", lambda: one.write([Create("/secret", b"s"), Create("/secret/x")]))
    for store in (one, two):
        await step("read it", lambda s=store: s.get_data(["/secret"]))  # type: ignore[misc]
        await step(
            "write it", lambda s=store: s.write([SetData("/secret", b"t"), Create("/secret/y"), Delete("/secret/x")])
        )  # type: ignore[misc]
        await step("its list", lambda s=store: s.get_acl(["/secret", "/a", "/none"]))  # type: ignore[misc]
        await step("change it", lambda s=store: s.set_acl(["/secret", "/none"], READ_ACL))  # type: ignore[misc]
        await step("change it again", lambda s=store: s.set_acl(["/a"], CREATOR_ALL_ACL))  # type: ignore[misc]
        await step("children", lambda s=store: s.get_children(["/", "/secret"]))  # type: ignore[misc]
    await step("nobody's", lambda: one.set_acl(["/a"], ()))
    await step("watch again", lambda: two.exists(["/z", "/e", "/a/s-0000000001"], watch=True))
    await step("watch children again", lambda: two.get_children(["/"], watch=True))

    async def while_apart(*ops: Op) -> None:
        made.disconnect(two)
        await one.write(list(ops))
        made.reconnect(two)

    await step("apart", lambda: while_apart(Create("/z"), Delete("/e"), Create("/y"), Delete("/a/s-0000000001")))

    async def session(act: Callable[[RecordedStore], None]) -> None:
        act(two)
        await trio.lowlevel.checkpoint()

    async def for_a_second() -> object:
        with trio.move_on_after(1):
            return await two.exists(["/a"])
        return "no answer"

    await step("freeze", lambda: session(made.freeze))
    await step("frozen", for_a_second)
    await step("thaw", lambda: session(made.reconnect))
    await step("thawed", for_a_second)
    await step("watch", lambda: two.exists(["/x"], watch=True))
    await step("ephemeral", lambda: two.write([Create("/mine", ephemeral=True)]))
    for act in (made.expire, made.refuse, made.end_session, made.reconnect):
        await step(act.__name__, lambda a=act: session(a))  # type: ignore[misc]
        script.lines.append(f"session {two.session_id} {two.session_timeout_ms} {two.is_closed} {two.is_abandoned}")
        await trio.sleep(2)
        script.lines.append(f"session {two.session_id}")
    await step("create", lambda: one.write([Create("/x")]))
    await step("ephemeral", lambda: two.write([Create("/mine", ephemeral=True)]))
    await step("abandon", lambda: session(lambda store: store.abandon()))
    await step("afterwards", lambda: two.exists(["/mine"]))
    await step("close", one.aclose)
    await step("afterwards", lambda: one.exists(["/mine"]))


async def test_the_transcript(autojump_clock: MockClock) -> None:
    script = Script()
    await server(script)
    transcripts.check(FOLDER / "server.txt", script.lines)
