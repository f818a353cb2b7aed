"""A proxy in front of a Kafka cluster, real or ours: rules act on what clients and brokers say to each other.

    async with Proxy("127.0.0.1:9092") as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
        async with proxy.faults(Rule(api="Produce", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, nth=3)):
            ...

Every broker gets a listener on loopback; one that is named for the first time gets it then. Addresses in responses
are replaced by those of the listeners, so that clients stay behind the proxy.

Several addresses may be given, of several listeners of a cluster: a client that comes in by the listener of one stays
on that listener's addresses. Its listeners are plaintext; its connections to brokers have TLS and SASL where
``security`` says so; otherwise SASL of clients passes. Frames are sent on as they are, but for addresses.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from kce import wire
from kce.broker_stub.node_client import NodeClient
from kce.broker_stub.ports import Address
from kce.captures.record.recorder import Recorder
from kce.harness import addresses
from kce.harness.background import BackgroundTasks
from kce.harness.client_security import ClientSecurity
from kce.harness.connections import Link
from kce.harness.errors import HarnessError, InvalidArgument, plain_error
from kce.harness.faults import Rule, applied
from kce.harness.history import History
from kce.harness.links import Links
from kce.harness.node_links import LinkListener, NodeLinks
from kce.harness.observed_link import answered_request
from kce.harness.world import World
from kce.harness.world.real_world import RealWorld
from kce.wire.transport import ConnectionLost

log = logging.getLogger(__name__)

#: the name of the proxy's listeners in events and rules
LISTENER = "PROXY"
#: destination of requests to an address whose broker id is not known
UNKNOWN_BROKER = -1
HOST = "127.0.0.1"
BACKLOG = 128
ANSWER_TIMEOUT_S = 10.0
#: such requests of a connection without response yet; of more, the oldest are forgotten
MAX_UNANSWERED = 10_000


class Proxy:
    """See the module. ``to`` are host:port of brokers. ``record`` is a pcapng file for the traffic.

    ``ports`` are those of the listeners, in the order of the broker ids; without them, or for more brokers, ports are
    free ones. ``history``: whether `history` keeps the frames.

    Entering raises HarnessError where no broker answers, or a port is taken.
    """

    def __init__(
        self,
        *to: str,
        ports: Sequence[int] = (),
        record: Path | None = None,
        history: bool = True,
        world: World | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """``security``: how the proxy connects to brokers; its own listeners are plaintext.

        Raises InvalidArgument for an address that is not host:port.
        """
        self._security = security or ClientSecurity()
        self._bootstrap = [_address(text) for text in to]
        self._ports = deque(ports)
        self._world = world or RealWorld()
        self._record = record
        self._recorder: Recorder | None = None
        self.links = Links([UNKNOWN_BROKER])
        #: of the topics in Metadata that has passed
        self._topic_names: dict[uuid.UUID, str] = {}
        self.links.topic_names[UNKNOWN_BROKER] = lambda: self._topic_names
        self.history = History(self.links, is_kept=history)
        self._fronts: dict[Address, _Front] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack)
                self._stack = stack.pop_all()
        except (HarnessError, BaseExceptionGroup) as e:
            raise plain_error(e) from None
        return self

    async def _start(self, stack: AsyncExitStack) -> None:
        if self.history.is_kept:
            stack.enter_context(self.links.listen(self.history.record))
        self._tasks = await stack.enter_async_context(BackgroundTasks.running())
        if self._record is not None:
            where = ", ".join("{}:{}".format(*address) for address in self._bootstrap)
            self._recorder = Recorder(self._record, f"kce proxy to {where}", clock=self._world.now_ns)
            stack.callback(self._recorder.close)
        for address in self._bootstrap:
            found = await self._brokers_behind(address)
            for broker, theirs in sorted(found.items()):
                await self._front(theirs, broker)
            await self._front(address, UNKNOWN_BROKER)

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, value, traceback)

    @property
    def bootstrap_servers(self) -> str:
        """host:port of the listeners for the addresses that were given."""
        return ",".join("{}:{}".format(*self._fronts[address].address) for address in self._bootstrap)

    @property
    def brokers(self) -> dict[Address, tuple[int, Address]]:
        """By the address of a broker: its id, -1 if that is not known, and the listener in front of it."""
        return {front.target: (front.broker, front.address) for front in self._fronts.values()}

    async def add_rule(self, rule: Rule) -> None:
        """Apply a rule from now on."""
        self.links.add(rule)

    async def remove_rule(self, rule: Rule) -> None:
        """Remove a rule; frames that it holds go on. Raises ValueError for a rule that was not added."""
        self.links.remove(rule)

    async def count_rule(self, rule: Rule) -> tuple[int, int]:
        """How many frames the rule has matched so far, and on how many it acted."""
        return rule.matched, rule.fired

    def faults(self, rule: Rule, *more: Rule, must_fire: bool = True) -> AbstractAsyncContextManager[Rule]:
        """See `Cluster.faults`."""
        return applied(self, (rule, *more), must_fire=must_fire)

    # the brokers

    def _node(self, links: Links, broker: int) -> NodeLinks:
        tls, sasl = self._security.tls, self._security.sasl
        return NodeLinks(
            self._world,
            links,
            broker,
            tls={} if tls is None else {LISTENER: tls},
            sasl={} if sasl is None else {LISTENER: sasl},
            accepts_plaintext=True,
        )

    async def _brokers_behind(self, address: Address) -> dict[int, Address]:
        """Ask a broker for its cluster. {} where it wants authentication first. Raises HarnessError."""
        where = "{}:{}".format(*address)
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                link = await self._node(Links(), UNKNOWN_BROKER).dial(*address, to=UNKNOWN_BROKER, listener=LISTENER)
        except OSError as e:
            raise HarnessError(f"no broker at {where}: {e.strerror or e}") from None
        except trio.TooSlowError:
            raise HarnessError(f"no broker at {where}: no connection in time") from None
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                response = await _metadata(link)
        except wire.SpeaksTls:
            how = "set security.protocol to SSL or SASL_SSL, on the command line in the file of --command-config"
            raise HarnessError(f"the listener at {where} has TLS: {how}") from None
        except (ConnectionLost, trio.TooSlowError, wire.WireError, KeyError) as e:
            why = str(e) or "no answer in time"
            hint = "; TLS needs security.protocol" if self._security.tls is None else ""
            log.warning(
                "%s does not describe its cluster: %s. Brokers are found when clients find them%s", where, why, hint
            )
            return {}
        finally:
            await link.aclose()
        return dict(addresses.brokers(response.__api_key__, response))

    async def _front(self, target: Address, broker: int) -> _Front:
        """The listener for a broker's address. Raises HarnessError for a port that is taken."""
        ours = (front for front in self._fronts.values() if front.address == target)
        front = self._fronts.get(target) or next(ours, None)  # of a broker that advertises its listener here
        if front is None:
            links = self._node(self.links, broker)
            links.recorder = self._recorder
            port = self._ports.popleft() if self._ports else 0
            try:
                listener = await links.bind(HOST, port, listener=LISTENER, max_frame_bytes=wire.DEFAULT_MAX_FRAME_BYTES)
                listener.listen(BACKLOG)
            except OSError as e:
                raise HarnessError(f"port {port} of {HOST} cannot be listened on: {e.strerror or e}") from None
            front = self._fronts[target] = _Front(self, target, links, listener)
            self._tasks.start_soon(front.run)
        if broker != UNKNOWN_BROKER:
            front.links.node_id = broker
            self.links.members.add(broker)
        return front

    async def replace_addresses(self, header: wire.Header, frame: bytes) -> bytes:
        """A response with the listeners' addresses; as it is if it cannot be decoded."""
        try:
            _, response = wire.decode_response(frame, api_key=header.api_key, api_version=header.api_version)
        except wire.DecodeError as e:
            log.warning("a response to %s is passed on as it is: %s", wire.api(header.api_key).name, e)
            return frame
        if isinstance(response, wire.MetadataResponse):
            self._topic_names |= {
                topic.topic_id: topic.name for topic in response.topics if topic.name and topic.topic_id.int
            }
        ours = {}
        for broker, theirs in addresses.brokers(header.api_key, response):
            ours[theirs] = (await self._front(theirs, broker)).address
        if not ours:
            return frame
        changed = addresses.replaced(header.api_key, response, lambda broker, theirs: ours[theirs])
        return wire.encode_response(
            changed, api_version=header.api_version, correlation_id=int.from_bytes(frame[:4], "big", signed=True)
        )


class _Front:
    """The listener in front of one address of a broker."""

    def __init__(self, proxy: Proxy, target: Address, links: NodeLinks, listener: LinkListener) -> None:
        self.target = target
        self.links = links
        self.address = listener.address
        self._proxy = proxy
        self._listener = listener

    @property
    def broker(self) -> int:
        return self.links.node_id

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    with suppress(ConnectionAbortedError):
                        nursery.start_soon(self._serve, await self._listener.accept())
        finally:
            self._listener.close()

    async def _serve(self, client: Link) -> None:
        """Connect to the broker and forward both ways; the end of one connection is the end of the other."""
        try:
            broker = await self.links.dial(*self.target, to=self.broker, listener=LISTENER)
        except OSError as e:
            log.warning("broker %d at %s:%d cannot be reached: %s", self.broker, *self.target, e)
            await client.aclose()
            return
        try:
            async with trio.open_nursery() as nursery:
                #: of requests whose responses may name brokers
                expected: deque[wire.Header] = deque(maxlen=MAX_UNANSWERED)
                nursery.start_soon(_until_it_ends, self._requests(client, broker, expected), nursery.cancel_scope)
                nursery.start_soon(_until_it_ends, self._responses(broker, client, expected), nursery.cancel_scope)
        finally:
            with trio.CancelScope(shield=True):
                await client.aclose()
                await broker.aclose()

    async def _requests(self, client: Link, broker: Link, expected: deque[wire.Header]) -> None:
        while (frame := await client.receive()) is not None:
            with suppress(wire.DecodeError):  # the frames of SASL without headers, for example
                header = wire.decode_request_header(frame)
                if addresses.names_brokers(header):
                    expected.append(header)
            await broker.send(frame)

    async def _responses(self, broker: Link, client: Link, expected: deque[wire.Header]) -> None:
        while (frame := await broker.receive()) is not None:
            if expected and (header := answered_request(frame, expected)) is not None:
                frame = await self._proxy.replace_addresses(header, frame)
            await client.send(frame)
        await trio.sleep(client.slow_close_s)


async def _until_it_ends(direction: Coroutine[object, object, None], both: trio.CancelScope) -> None:
    with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError, wire.LimitExceeded):
        await direction
    both.cancel()


async def _metadata(link: Link) -> wire.Message:
    """Metadata of no topics, in the latest version that both ends know. Raises ConnectionLost, wire.WireError."""
    client = NodeClient(link, "kce proxy")
    key = wire.MetadataRequest.__api_key__
    theirs, ours = (await client.api_versions())[key][1], wire.api(key).versions[-1]
    return await client.request(wire.MetadataRequest(topics=()), min(theirs, ours))


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidArgument(f"{text!r} is not host:port, as in 127.0.0.1:9092")
    return host.strip("[]"), int(port)
