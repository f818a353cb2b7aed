"""`kce replay`: recorded requests at live brokers, or recorded answers for a live controller."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import click
import trio

import wire
from captures import selection
from captures.errors import CaptureError
from captures.exchanges import Request
from captures.impersonation import Impersonator
from captures.pcap import CaptureFile
from captures.recorder import Recorder, TappedStream, record_accepted
from captures.render import Renderer
from captures.replay import ANSWER_SECONDS, Outcome, Recording, Replay, Step, Target, Verdict, target_of
from captures.rewrite import VOLATILE, Rewriter, newest_controller_epoch
from captures.segments import endpoint_text
from controller.kafka_zk_client import BrokerIdInUse
from controller.model import Broker, BrokerId
from harness.cli.captures import each
from harness.cli.options import cluster_option, connected, zookeeper_option
from harness.errors import HarnessError
from wire.metadata_version import MetadataVersion
from wire.vocabulary import Endpoint

CURRENT = "current"


@click.command(
    epilog="""\\b
Examples:
  kce replay incident.pcapng --as controller --broker 2 --to 127.0.0.1:9093 \\\\
      --controller-epoch current --broker-epoch current
  kce replay incident.pcapng --as controller --to 1=127.0.0.1:9093 --to 2=127.0.0.1:9095 --controller-epoch +1 --dry-run
  kce replay incident.pcapng --as client --connection 12 --to 127.0.0.1:9092 --speed 10
  kce replay incident.pcapng --as broker --broker 2 --zookeeper 127.0.0.1:2181

The exit code is 1 if an answer is different from the recorded one, or missing.
"""
)
@click.argument("file", type=click.Path())
@click.option("--as", "role", type=click.Choice(["controller", "broker", "client"]), required=True, help="Who to be.")
@click.option(
    "--to", "to", multiple=True, metavar="[ID=]HOST:PORT",
    help="Where the requests go; with ID=, those that went to that broker. May be repeated.",
)  # fmt: skip
@click.option(
    "--broker", "broker_id", type=int, metavar="ID", help="Only what went to this broker; or the broker to be."
)
@click.option(
    "--connection", type=int, metavar="N", help="Only the recorded connection of that number (kce decode --json)."
)
@click.option("--api", "apis", multiple=True, metavar="NAME", callback=each(selection.api_key), help="Only this API.")
@click.option(
    "--since", "since_ns", metavar="TIME", callback=each(selection.time_ns), help="Only what was sent from then on."
)
@click.option(
    "--until", "until_ns", metavar="TIME", callback=each(selection.time_ns), help="Only what was sent before."
)
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="2 is twice as fast.")
@click.option("--no-wait", is_flag=True, help="Send as soon as what came before has been answered.")
@click.option(
    "--controller-epoch", metavar="+N|N|current",
    help="Shift the controllers' epochs: by N, or so that the newest becomes N, or ZooKeeper's.",
)  # fmt: skip
@click.option("--broker-epoch", metavar="N|current", help="The brokers' epochs now; current: as ZooKeeper has them.")
@click.option(
    "--answer-seconds", type=float, default=ANSWER_SECONDS, show_default=True, help="How long to wait for an answer."
)
@click.option(
    "--record", type=click.Path(dir_okay=False), metavar="FILE", help="Write the new traffic there, as pcapng."
)
@click.option(
    "--volatile", "volatile", multiple=True, metavar="FIELD",
    help="A field of answers that may differ, such as topic_id, cluster_id or port of another cluster; may be repeated."
    f" Always: {', '.join(sorted(VOLATILE))}.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and where; send nothing.")
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME",
    help="As broker: listeners to offer, if not the recorded ones.",
)
@zookeeper_option
@cluster_option
def replay(
    file: str, role: str, to: tuple[str, ...], broker_id: int | None, connection: int | None, apis: tuple[int, ...],
    since_ns: int | None, until_ns: int | None, speed: float, no_wait: bool, controller_epoch: str | None,
    broker_epoch: str | None, answer_seconds: float, record: str | None,
    volatile: tuple[str, ...], dry_run: bool, listeners: tuple[str, ...],
    zookeeper: str | None, cluster_file: Path | None,
) -> int:  # fmt: skip
    """Send what a capture holds again, and compare the answers; or be a recorded broker for a live controller.

    Connections and correlation ids are new; the order of what was caused and its timing are kept. As controller, what
    controllers told brokers is sent; as client, the requests of one connection. As broker, it registers in ZooKeeper
    with ports of its own, and gives each request the recorded answer to the one that it is most like, until Ctrl-C.
    """
    with CaptureFile(file) as capture:
        recording = Recording.read(capture)
    steps = recording.of_controllers() if role == "controller" else recording.steps
    steps = [
        step for step in steps
        if (broker_id is None or step.broker_id == broker_id)
        and (connection is None or step.request.peers.connection == connection)
        and (not apis or step.request.api_key in apis)
        and (since_ns is None or step.request.place.time_ns >= since_ns)
        and (until_ns is None or step.request.place.time_ns < until_ns)
    ]  # fmt: skip
    if not steps:
        raise CaptureError(f"{file}: no request in it is to be replayed as {role} with these filters")
    recorder = None if record is None else Recorder(record, f"kce replay of {file} as {role}")
    with contextlib.ExitStack() as stack:
        if recorder is not None:
            stack.callback(recorder.close)
        if role == "broker":
            if broker_id is None:
                raise click.UsageError("--as broker needs --broker ID, the broker to be")
            if to and zookeeper is None:
                zookeeper = to[0]
            offered = list(listeners) or sorted(
                {each.name for each in recording.cluster.listeners if each.broker_id == broker_id}
            )
            registered = partial(_registered, zookeeper, cluster_file, broker_id)
            return trio.run(_be_broker, Impersonator(steps), offered or ["PLAINTEXT"], registered, recorder)
        if role == "client":
            _one_connection(file, steps)
        targets = _targets(to, steps)
        if not targets:
            raise click.UsageError("--to HOST:PORT is missing: where the requests are to go")
        rewriter = trio.run(_rewriter, steps, controller_epoch, broker_epoch, zookeeper, cluster_file)
        if dry_run:
            return _show(steps, targets, rewriter, recording)
        run = Replay(
            steps, targets, dial=partial(_dial, recorder), rewrite=rewriter, speed=None if no_wait else speed,
            answer_seconds=answer_seconds, volatile=VOLATILE.union(volatile),
        )  # fmt: skip
        return _tell(trio.run(run.run), len(recording.left_out))


def _one_connection(file: str, steps: list[Step]) -> None:
    peers = {step.request.peers: None for step in steps}
    if len(peers) > 1:
        some = ", ".join(
            f"{p.connection} ({endpoint_text(*p.client)} to {endpoint_text(*p.server)})" for p in [*peers][:5]
        )
        raise CaptureError(f"{file}: {len(peers)} connections; a client is one of them, by --connection: {some}, ...")


def _targets(to: tuple[str, ...], steps: list[Step]) -> dict[int | None, Target]:
    targets: dict[int | None, Target] = {}
    for text in to:
        broker, equals, where = text.rpartition("=")
        host, colon, port = where.rpartition(":")
        if not (colon and host and port.isdecimal()) or (equals and not broker.isdecimal()):
            raise click.UsageError(f"--to {text}: not HOST:PORT or ID=HOST:PORT")
        targets[int(broker) if equals else None] = host.strip("[]"), int(port)
    brokers = sorted({step.broker_id for step in steps if step.broker_id is not None})
    if None in targets and len(targets) == 1 and len(brokers) > 1:
        ids = ", ".join(map(str, brokers))
        raise CaptureError(
            f"the requests went to brokers {ids}: choose one with --broker, or give each a --to ID=HOST:PORT"
        )
    for step in steps:
        if targets:
            target_of(step, targets)
    return targets


async def _rewriter(
    steps: list[Step],
    controller_epoch: str | None,
    broker_epoch: str | None,
    zookeeper: str | None,
    cluster_file: Path | None,
) -> Rewriter:
    newest = newest_controller_epoch(step.request for step in steps)
    brokers = {step.broker_id for step in steps if step.broker_id is not None}
    shift = 0
    present: dict[int, int] = {}
    if CURRENT in (controller_epoch, broker_epoch):
        async with connected(zookeeper, cluster_file) as zk:
            if broker_epoch == CURRENT:
                registered = await zk.get_brokers(watch=False)
                present = {int(broker): int(epoch) for broker, (_, epoch) in registered.items()}
                if missing := brokers - present.keys():
                    raise HarnessError(f"broker {min(missing)} is not registered in ZooKeeper: it has no epoch now")
            if controller_epoch == CURRENT:
                found = await zk.get_controller_epoch()
                if found is None:
                    raise HarnessError("ZooKeeper has no controller epoch: there was no controller yet")
                controller_epoch = str(found[0])
    try:
        if controller_epoch is not None and newest is not None:
            relative = controller_epoch[:1] in "+-"
            shift = int(controller_epoch) if relative else int(controller_epoch) - newest
        if broker_epoch is not None and broker_epoch != CURRENT:
            present = dict.fromkeys(brokers, int(broker_epoch))
    except ValueError as e:
        raise click.UsageError(f"an epoch is a number, +number or {CURRENT} ({e})") from None
    return Rewriter(((s.request, s.broker_id) for s in steps), controller_shift=shift, broker_epochs=present)


def _show(
    steps: list[Step],
    targets: dict[int | None, Target],
    rewrite: Callable[[Request], wire.Message],
    recording: Recording,
) -> int:
    renderer = Renderer(recording.cluster)
    for step in sorted(steps, key=lambda step: step.request.place):
        host, port = target_of(step, targets)
        request = dataclasses.replace(step.request, body=rewrite(step.request))
        click.echo(f"{renderer.line(request)} => {host}:{port}")
    click.echo(f"kce: {len(steps)} requests would be sent; {len(recording.left_out)} cannot be", err=True)
    return 0


def _tell(outcomes: list[Outcome], left_out: int) -> int:
    counts = Counter(outcome.verdict for outcome in outcomes)
    for outcome in outcomes:
        if outcome.verdict in (Verdict.DIFFERENT, Verdict.MISSING):
            click.echo(str(outcome))
    told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    click.echo(
        f"{len(outcomes)} requests replayed: {told}" + (f"; {left_out} in the capture could not be" if left_out else "")
    )
    return 1 if counts[Verdict.DIFFERENT] or counts[Verdict.MISSING] else 0


async def _dial(recorder: Recorder | None, host: str, port: int) -> trio.abc.Stream:
    stream = await trio.open_tcp_stream(host, port)
    if recorder is None:
        return stream
    ends = stream.socket.getsockname()[:2], stream.socket.getpeername()[:2]
    return TappedStream(stream, recorder.connection(*ends), "client")


@contextlib.asynccontextmanager
async def _registered(
    zookeeper: str | None, cluster_file: Path | None, broker_id: int, endpoints: tuple[Endpoint, ...]
) -> AsyncIterator[None]:
    async with connected(zookeeper, cluster_file) as zk:
        try:
            await zk.register_broker(Broker(BrokerId(broker_id), endpoints), MetadataVersion.parse("3.9"))
        except BrokerIdInUse as e:
            raise HarnessError(str(e)) from None
        yield


async def _be_broker(
    broker: Impersonator,
    listeners: list[str],
    registered: Callable[[tuple[Endpoint, ...]], contextlib.AbstractAsyncContextManager[None]],
    recorder: Recorder | None,
    until: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """Serve until ``until`` returns (Ctrl-C, SIGTERM); tell what was asked."""

    async def serve(stream: trio.SocketStream) -> None:
        await broker.serve(stream if recorder is None else record_accepted(recorder, stream))

    async with trio.open_nursery() as nursery:
        endpoints = []
        for name in listeners:
            bound = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            endpoints.append(Endpoint(name, "PLAINTEXT", "127.0.0.1", bound[0].socket.getsockname()[1]))
        async with registered(tuple(endpoints)):
            click.echo(f"kce: registered with {', '.join(map(str, endpoints))}; Ctrl-C ends it", err=True)
            await (until or _told_to_stop)()
        nursery.cancel_scope.cancel()
    for answered in broker.answered:
        click.echo(str(answered))
    unanswered = sum(1 for answered in broker.answered if answered.step is None)
    click.echo(f"{len(broker.answered)} requests, {unanswered} of them without an answer")
    return 1 if unanswered else 0


async def _told_to_stop() -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return
