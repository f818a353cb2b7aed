"""`kce replay`: replays requests to live brokers, or plays a broker to a live controller."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges import selection
from kce.captures.exchanges.pairing import Peers
from kce.captures.exchanges.ports import Ports
from kce.captures.files.locations import expand
from kce.captures.record.recorder import Recorder, TappedStream
from kce.captures.replay.asking import Target
from kce.captures.replay.impersonation import Impersonator
from kce.captures.replay.recording import Recording, Step
from kce.captures.replay.replay import ANSWER_SECONDS, Replay, target_of
from kce.captures.replay.restarts import Restart, can_be_found, needed, restarts
from kce.captures.replay.rewrite import VOLATILE, Rewriter, newest_controller_epoch, whose_epoch
from kce.captures.tcp.segments import endpoint_text
from kce.harness import interrupts, recorded_layout
from kce.harness.cli.captures import closing, opened
from kce.harness.cli.impersonate import be_broker
from kce.harness.cli.options import (
    FiniteRange,
    check_span,
    cluster_option,
    command_config_option,
    connected,
    parsed,
    ports_option,
    zookeeper_option,
)
from kce.harness.cli.replay_output import show_answers, show_outcomes, show_requests, show_topics
from kce.harness.client_security import ClientSecurity
from kce.harness.cluster_config import CONTROL, DATA
from kce.harness.errors import HarnessError
from kce.harness.running import command, find_cluster, running_clusters
from kce.zookeeper.kafka_zk_client import KafkaZkClient

CURRENT = "current"
_SHOWN_CLIENTS = 20
_LOGINS = frozenset({wire.SaslHandshakeRequest.__api_key__, wire.SaslAuthenticateRequest.__api_key__})


@click.command(
    epilog="""\b
Examples:
  kce replay incident.pcapng --as controller --broker 2 --to 127.0.0.1:9093 \\
      --controller-epoch current --broker-epoch current
  kce replay incident.pcapng --as controller --to 1=127.0.0.1:9093 --to 2=127.0.0.1:9095 --controller-epoch +1 --dry-run
  kce replay incident.pcapng --as client --connection 12 --to 127.0.0.1:9092 --speed 10
  kce replay incident.pcapng --as client --client-id billing --to 1=127.0.0.1:9092 --to 2=127.0.0.1:9094
  kce replay incident.pcapng --as client --client-id billing --create-topics
  kce replay incident.pcapng --as broker --broker 2 --zookeeper 127.0.0.1:2181
  kce replay demo/capture.pcapng --as controller --controller-epoch +10 --broker-epoch current --restart

Without --to, requests go to the running `kce up`: from a controller to its control listeners, else to its data
listeners.

The exit code is 1 if a response differs from the recorded one or is missing.
"""
)
@click.argument("files", metavar="FILES...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@ports_option
@click.option("--tls-keys", metavar="FILE", help="Decrypt TLS with this key log (SSLKEYLOGFILE); needs tshark.")
@click.option(
    "--as", "role", type=click.Choice(["controller", "broker", "client"]), required=True, help="The role to play."
)
@click.option(
    "--to", "to", multiple=True, metavar="[ID=]HOST:PORT",
    help="Target of the requests; with ID=, of the requests to that broker. May be repeated.",
)  # fmt: skip
@click.option(
    "--broker",
    "broker_id",
    type=int,
    metavar="ID",
    help="Only requests to this broker; with --as broker, the broker to play.",
)
@click.option(
    "--connection", "connections", type=int, multiple=True, metavar="N",
    help="Only the recorded connection with this number (see kce decode --json); may be repeated.",
)  # fmt: skip
@click.option("--client-id", metavar="ID", help="Only requests with this client id, of all its connections.")
@click.option(
    "--create-topics", is_flag=True,
    help="As client: first create the topics it uses, with the recorded leaders, and those of its coordinators.",
)  # fmt: skip
@click.option("--api", "apis", multiple=True, metavar="NAME", callback=parsed(selection.api_key), help="Only this API.")
@click.option(
    "--since", "since_ns", metavar="TIME", callback=parsed(selection.time_ns), help="Only requests from this time on."
)
@click.option(
    "--until", "until_ns", metavar="TIME", callback=parsed(selection.time_ns), help="Only requests before this time."
)
@click.option("--speed", type=FiniteRange(min=0, min_open=True), default=1.0, help="2 is twice as fast.")
@click.option(
    "--no-wait", is_flag=True, help="Ignore the recorded timing; send as soon as earlier responses have arrived."
)
@click.option(
    "--controller-epoch", metavar="+N|N|current",
    help="Shift all controller epochs: by N, or so that the newest becomes N or ZooKeeper's current one.",
)  # fmt: skip
@click.option("--broker-epoch", metavar="N|current", help="Replace broker epochs; current: with those in ZooKeeper.")
@click.option(
    "--restart", is_flag=True,
    help="Restart a broker of the running `kce up` where the recorded one was restarted (Kafka 2.2 and later).",
)  # fmt: skip
@click.option(
    "--answer-seconds",
    type=FiniteRange(min=0, min_open=True),
    default=ANSWER_SECONDS,
    show_default=True,
    help="Timeout of a response.",
)
@click.option(
    "--record", type=click.Path(dir_okay=False), metavar="FILE", help="Record the new traffic to this pcapng file."
)
@click.option(
    "--volatile", "volatile", multiple=True, metavar="FIELD",
    help="Ignore this response field, such as topic_id, cluster_id or port; may be repeated."
    f" Always: {', '.join(sorted(VOLATILE))}.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the requests and their targets; send nothing.")
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME",
    help="With --as broker: listeners to offer instead of the recorded ones.",
)
@command_config_option
@zookeeper_option
@cluster_option
def replay(
    files: tuple[str, ...], ports: Ports, tls_keys: str | None, role: str, to: tuple[str, ...], broker_id: int | None,
    connections: tuple[int, ...], client_id: str | None, create_topics: bool, apis: tuple[int, ...],
    since_ns: int | None, until_ns: int | None, speed: float, no_wait: bool, controller_epoch: str | None,
    broker_epoch: str | None, restart: bool, answer_seconds: float, record: str | None, volatile: tuple[str, ...],
    dry_run: bool, listeners: tuple[str, ...], command_config: Path | None, zookeeper: str | None,
    cluster_file: Path | None,
) -> int:  # fmt: skip
    """Replay requests of a capture and compare the responses, or play a recorded broker to a live controller.

    Connections and correlation ids are new; causal order and timing are kept. As controller it sends the recorded
    control requests; as client, the requests of one client, with the ids that the live cluster gives: of topics, group
    members and their generations, fetch sessions, producers and delegation tokens. As broker it registers in ZooKeeper
    with its own ports and answers each request with the response of the best matching recorded one, until Ctrl-C.

    FILES are read as by `kce decode`: several are one incident; compressed, remote, or standard input (-).
    """
    if role == "broker" and broker_id is None:
        raise click.UsageError("--as broker needs --broker ID, the broker to play")
    check_span(since_ns, until_ns)
    if restart and role != "controller":
        raise click.UsageError("--restart needs --as controller")
    if create_topics and role != "client":
        raise click.UsageError("--create-topics needs --as client")
    if record is not None and any(
        Path(file).exists() and Path(record).resolve() == Path(file).resolve() for file in files
    ):
        raise click.UsageError(f"--record {record} would overwrite the recording")
    name = ", ".join(files)
    recording = _read(expand(files), ports, tls_keys)
    steps = recording.of_controllers() if role == "controller" else recording.steps
    steps = [
        step for step in steps
        if (broker_id is None or step.broker_id == broker_id)
        and (not connections or step.request.peers.connection in connections)
        and (client_id is None or step.request.client_id == client_id)
        and (not apis or step.request.api_key in apis)
        and (since_ns is None or step.request.place.time_ns >= since_ns)
        and (until_ns is None or step.request.place.time_ns < until_ns)
    ]  # fmt: skip
    security = ClientSecurity.of_file(command_config)
    if security.sasl is not None and role != "broker":
        steps = _without_logins(steps)
    if not recording.steps:
        raise CaptureError(f"{name}: contains no Kafka request to replay")
    known = sorted({step.broker_id for step in recording.steps if step.broker_id is not None})
    if broker_id is not None and broker_id not in known:
        others = ", ".join(map(str, known)) or "unknown"
        raise click.UsageError(f"{name}: no request went to a broker {broker_id}; the ids of those asked are {others}")
    if not steps:
        raise CaptureError(f"{name}: no request matches --as {role} and the filters")
    if role == "client" and not connections and client_id is None:
        _one_connection(name, steps)
    with contextlib.ExitStack() as stack:
        recorder = None
        if record is not None and not dry_run:
            recorder = Recorder(record, f"kce replay of {name} as {role}")
            stack.callback(recorder.close)
        if role == "broker":
            assert broker_id is not None
            if dry_run:
                return show_answers(steps, recording)
            own = sorted(
                (one for one in recording.cluster.listeners if one.broker_id == broker_id), key=lambda one: one[:4]
            )
            offered = listeners or tuple(dict.fromkeys(one.name for one in own)) or ("PLAINTEXT",)
            rack = next((one.rack for one in own), None)
            registry = zookeeper or (to[0] if to else None), cluster_file
            return interrupts.run(
                be_broker, Impersonator(steps, None if no_wait else speed), broker_id, rack, offered, registry, recorder
            )
        targets = _targets(to, steps) if to else _of_cluster(cluster_file, CONTROL if role == "controller" else DATA)
        for step in steps:
            target_of(step, targets)
        rewriter = interrupts.run(_rewriter, steps, controller_epoch, broker_epoch, zookeeper, cluster_file)
        layout = recorded_layout.layout_of(recording.steps, steps) if create_topics else None
        if dry_run:
            if layout is not None:
                show_topics(layout.topics)
            return show_requests(steps, targets, rewriter, recording)
        if layout is not None:
            created = partial(recorded_layout.create_topics, seconds=answer_seconds, targets=targets)
            first, dial_unrecorded = target_of(steps[0], targets), partial(_dial, None, security)
            for line in interrupts.run(created, layout, first, dial_unrecorded):
                click.echo(f"kce: {line}", err=True)
        restarted = needed(restarts(recording.steps), steps)
        dial = partial(_dial, recorder, security)
        run = Replay(
            steps, targets, dial=dial, rewrite=rewriter, speed=None if no_wait else speed,
            answer_seconds=answer_seconds, volatile=VOLATILE.union(volatile),
            topic_names=recording.topic_names(), translate_ids=role == "client", restarts=restarted,
            restart=partial(_restart, find_cluster(cluster_file), rewriter) if restart else None,
        )  # fmt: skip
        if role == "controller" and not can_be_found(steps):
            click.echo("kce: restarts are not found in a recording without broker epochs (Kafka before 2.2)", err=True)
        if role == "controller" and not restart:
            _warn_of(restarted)
        try:
            whole = interrupts.run(_run_until_signal, run)
        except HarnessError:  # of a restart
            show_outcomes(run.outcomes(), len(recording.left_out))
            raise
        code = show_outcomes(run.outcomes(), len(recording.left_out))
        if not whole:
            click.echo(interrupts.LINE, err=True)
            return 130
        return code


def _read(names: list[str], ports: Ports, tls_keys: str | None) -> Recording:
    with opened(names, tls_keys, twice=False) as open_capture, closing(open_capture()) as capture:
        recording = Recording.read(capture, ports)
    quality = recording.quality
    if not quality.sound or quality.lossy or quality.sources:
        for line in (quality.summary(), *quality.lines()):
            click.echo(f"kce: {line}", err=True)
    return recording


def _one_connection(file: str, steps: list[Step]) -> None:
    """Raises CaptureError for several. It shows one connection of each client id."""
    connections = {step.request.peers for step in steps}
    if len(connections) > 1:
        clients: dict[str | None, Peers] = {}
        for step in steps:
            clients.setdefault(step.request.client_id, step.request.peers)
        some = ", ".join(
            f"{peers.connection} ({client_id!r} to {endpoint_text(*peers.server)})"
            for client_id, peers in [*clients.items()][:_SHOWN_CLIENTS]
        )
        raise CaptureError(
            f"{file}: {len(connections)} connections; choose a client by --client-id or --connection. The first of "
            f"each client id: {some}{', ...' if len(clients) > _SHOWN_CLIENTS else ''}; `kce decode --json` shows all"
        )


def _without_logins(steps: list[Step]) -> list[Step]:
    """The connection logs in itself. A recorded login would be as another user, or answer an old challenge."""
    others = [step for step in steps if step.request.api_key not in _LOGINS]
    if len(others) < len(steps):
        click.echo(
            f"kce: {len(steps) - len(others)} requests of recorded logins are left out: --command-config logs in",
            err=True,
        )
    return others


def _targets(to: tuple[str, ...], steps: list[Step]) -> dict[int | None, Target]:
    targets: dict[int | None, Target] = {}
    for text in to:
        broker, equals, where = text.rpartition("=")
        host, colon, port = where.rpartition(":")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536) or (equals and not broker.isdecimal()):
            raise click.UsageError(f"--to {text}: not HOST:PORT or ID=HOST:PORT")
        targets[int(broker) if equals else None] = host.strip("[]"), int(port)
    brokers = sorted({step.broker_id for step in steps if step.broker_id is not None})
    if None in targets and len(targets) == 1 and len(brokers) > 1:
        ids = ", ".join(map(str, brokers))
        raise CaptureError(
            f"the requests went to brokers {ids}: choose one with --broker, or give each a --to ID=HOST:PORT"
        )
    return targets


def _of_cluster(cluster_file: Path | None, listener: str) -> dict[int | None, Target]:
    if cluster_file is None and not running_clusters():
        raise click.UsageError("--to HOST:PORT is missing, and no `kce up` of yours is running")
    nodes: list[dict[str, Any]] = command(find_cluster(cluster_file), "describe")["nodes"]
    targets: dict[int | None, Target] = {}
    for node in nodes:
        if listener in node["listeners"]:
            host, _, port = node["listeners"][listener].rpartition(":")
            targets[node["id"]] = host, int(port)
    return targets


def _epoch(text: str, option: str, forms: str) -> int:
    """Raises UsageError for what is no number; ``forms`` are what may be written beside CURRENT."""
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"{option} {text}: neither {forms} nor {CURRENT}") from None


async def _rewriter(
    steps: list[Step],
    controller_epoch: str | None,
    broker_epoch: str | None,
    zookeeper: str | None,
    cluster_file: Path | None,
) -> Rewriter:
    wanted = controller_epoch
    newest = newest_controller_epoch(step.request for step in steps)
    of = (whose_epoch(step.request, step.broker_id) for step in steps)
    brokers = {broker_id for broker_id in of if broker_id is not None}
    shift = 0
    present: dict[int, int] = {}
    if CURRENT in (controller_epoch, broker_epoch):
        async with connected(zookeeper, cluster_file) as zk:
            if broker_epoch == CURRENT:
                present = await _broker_epochs(zk)
                if missing := brokers - present.keys():
                    raise HarnessError(f"broker {min(missing)} is not registered in ZooKeeper: it has no epoch now")
            if controller_epoch == CURRENT:
                found = await zk.get_controller_epoch()
                if found is None:
                    raise HarnessError("ZooKeeper has no controller epoch: there was no controller yet")
                controller_epoch = str(found[0])
    if controller_epoch is not None and newest is not None:
        shift = _epoch(controller_epoch, "--controller-epoch", "a number, +number")
        if controller_epoch[:1] not in "+-":
            shift -= newest
    if broker_epoch is not None and broker_epoch != CURRENT:
        present = dict.fromkeys(brokers, _epoch(broker_epoch, "--broker-epoch", "a number"))
        if not 0 <= int(broker_epoch) < 2**63:
            raise click.UsageError(f"--broker-epoch {broker_epoch}: must be from 0 to {2**63 - 1}")
    try:
        return Rewriter(((s.request, s.broker_id) for s in steps), controller_shift=shift, broker_epochs=present)
    except ValueError as e:
        raise click.UsageError(f"--controller-epoch {wanted}: {e}") from None


async def _broker_epochs(zk: KafkaZkClient) -> dict[int, int]:
    return {int(broker): int(epoch) for broker, (_, epoch) in (await zk.get_brokers(watch=False)).items()}


async def _restart(cluster: dict[str, Any], rewriter: Rewriter, broker_id: int) -> None:
    """Restart a node. Read its new broker epoch if epochs are rewritten."""
    answer = await trio.to_thread.run_sync(partial(command, cluster, "restart", node=broker_id), abandon_on_cancel=True)
    click.echo(f"kce: {answer['text']}", err=True)
    if broker_id in rewriter.broker_epochs:
        async with connected(cluster["zookeeper"], None) as zk:
            rewriter.broker_epochs |= await _broker_epochs(zk)


def _warn_of(restarted: Iterable[Restart]) -> None:
    for place, broker_id in restarted:
        click.echo(
            f"kce: broker {broker_id} was restarted before packet {place.packet} and lost its state; "
            "use --restart to restart that broker of the running `kce up`, too", err=True,
        )  # fmt: skip


async def _run_until_signal(run: Replay) -> bool:
    """Run it; False if a signal stopped it. The nursery holds the signal watcher."""
    whole = False
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:

        async def watch(task_status: trio.TaskStatus[None]) -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for _ in signals:
                    nursery.cancel_scope.cancel()

        await nursery.start(watch)
        try:
            await run.run()
            whole = True
        except (CaptureError, HarnessError) as e:
            failure = e
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return whole


async def _dial(recorder: Recorder | None, security: ClientSecurity, host: str, port: int) -> trio.abc.Stream:
    """What is recorded is in the clear."""
    connected = await trio.open_tcp_stream(host, port)
    try:
        ends = connected.socket.getsockname()[:2], connected.socket.getpeername()[:2]
        stream = await security.secured(connected, host)
    except BaseException:
        await trio.aclose_forcefully(connected)
        raise
    if recorder is None:
        return stream
    return TappedStream(stream, recorder.connection(*ends), "client")
