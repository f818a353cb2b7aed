"""`kce replay --as broker`: registers in ZooKeeper as a recorded broker and answers like it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import click
import trio

from kce.captures.record.recorder import Recorder, record_accepted
from kce.captures.replay.impersonation import Impersonator
from kce.harness.cli.options import connected
from kce.harness.errors import HarnessError
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import Endpoint
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, RegisteredBroker
from kce.zookeeper.registration import BrokerIdInUse
from kce.zookeeper.store import SessionExpired, SessionState

#: Signals within this time are one.
_ONE_WISH_S = 0.1


async def be_broker(
    broker: Impersonator,
    broker_id: int,
    rack: str | None,
    listeners: Sequence[str],
    registry: tuple[str | None, Path | None],
    recorder: Recorder | None,
) -> int:
    """Serve ``listeners``, of these names, until Ctrl-C or SIGTERM; then list the requests.

    ``registry``: a ZooKeeper, or the file of a running cluster. Its nursery holds the listeners. Raises HarnessError.
    """

    async def serve(stream: trio.SocketStream) -> None:
        await broker.serve(stream if recorder is None else record_accepted(recorder, stream))

    async with trio.open_nursery() as nursery:
        endpoints = []
        for name in listeners:
            bound = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            endpoints.append(Endpoint(name, "PLAINTEXT", "127.0.0.1", bound[0].socket.getsockname()[1]))
        broker_itself = RegisteredBroker(BrokerId(broker_id), tuple(endpoints), rack)
        async with _registered(registry, broker_itself) as lacking:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                click.echo(f"kce: registered with {', '.join(map(str, endpoints))}; Ctrl-C ends it", err=True)
                if lacking:
                    click.echo(f"kce: {lacking}", err=True)
                await anext(signals)
                code = _print_answered(broker)
                # `timeout` signals its child, and then the child's group: that is no second wish
                with trio.move_on_after(_ONE_WISH_S):
                    async for _ in signals:
                        pass
        nursery.cancel_scope.cancel()
    return code


def _print_answered(broker: Impersonator) -> int:
    """The exit code."""
    for answered in broker.answered:
        click.echo(str(answered))
    unanswered = sum(1 + answered.repeats for answered in broker.answered if answered.step is None)
    requests = sum(1 + answered.repeats for answered in broker.answered)
    click.echo(f"{requests} requests, {unanswered} of them without a recorded response")
    return 1 if unanswered else 0


@contextlib.asynccontextmanager
async def _registered(registry: tuple[str | None, Path | None], broker: RegisteredBroker) -> AsyncIterator[str | None]:
    """Yields what it lacks beside the other brokers.

    Like a broker, it registers again in every new session: an expired one takes its registration with it.
    """
    async with connected(*registry) as zk:
        others = [each for each, _ in (await zk.get_brokers(watch=False)).values()]
        await _register(zk, broker)
        lost, established = trio.open_memory_channel[None](1)

        def changed(state: SessionState) -> None:
            if state is SessionState.ESTABLISHED:
                with contextlib.suppress(trio.WouldBlock):  # it is waited for already
                    lost.send_nowait(None)

        async def register_again() -> None:
            async for _ in established:
                try:
                    await _register(zk, broker)
                    click.echo("kce: registered again: the ZooKeeper session had expired", err=True)
                except SessionExpired:  # another one comes
                    continue
                except HarnessError as e:
                    click.echo(f"kce: {e}", err=True)

        zk.store.on_session = changed
        async with trio.open_nursery() as nursery:
            nursery.start_soon(register_again)
            yield _lacking(broker, others)
            nursery.cancel_scope.cancel()


def _lacking(broker: RegisteredBroker, others: Sequence[RegisteredBroker]) -> str | None:
    """A cluster's nodes reach one another by listeners of the same names."""
    names = dict.fromkeys(endpoint.listener for other in others for endpoint in other.endpoints)
    own = [endpoint.listener for endpoint in broker.endpoints]
    if not (lacking := [name for name in names if name not in own]):
        return None
    options = " ".join(f"--listener {name}" for name in names)
    return (
        f"the other brokers also have {', '.join(lacking)}, and it may not be reached without: {options} offers these"
    )


async def _register(zk: KafkaZkClient, broker: RegisteredBroker) -> None:
    """Raises HarnessError, SessionExpired."""
    try:
        await zk.register_broker(broker, MetadataVersion.parse("3.9"))
    except BrokerIdInUse as e:
        raise HarnessError(str(e)) from None
