"""The simulation: the same run from the same seed, no violation in the real thing, and each deliberate bug is found.

Covers: harness/invariants.py, harness/simulated_client.py, harness/simulated_clients.py, harness/simulated_groups.py,
harness/simulated_copies.py, harness/simulated_operations.py, harness/cli/simulate.py.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from kce import wire
from kce.captures.files.pcap import CaptureFile
from kce.harness import Cluster
from kce.harness.cli import simulate as command
from kce.harness.cli.simulate import simulate_
from kce.harness.errors import HarnessError
from kce.harness.invariants import Invariants, watch
from kce.harness.links import FrameEvent
from kce.harness.members import InProcessMember
from kce.harness.simulated_clients import SimulatedClients
from kce.harness.simulation import schedule, shrunk, simulate
from kce.harness.world import memory
from tests.harness import coordinator_bugs, deliberate_bugs
from tests.harness.conftest import Here
from tests.harness.deliberate_bugs import broker_outside_the_assignment_in_the_isr

#: runs of the real thing; `kce simulate --seeds 0..9999` makes more
RUNS = int(os.environ.get("KCE_SIMULATIONS", "20"))
#: within so many seeds each bug is found
MAX_SEEDS = 1000
BUGS = (*deliberate_bugs.BUGS, *coordinator_bugs.BUGS)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    traces = []
    for name in ("first", "second"):
        result = simulate(5, trace=tmp_path / name, record=tmp_path / f"{name}.pcapng")
        assert result.violations == ()
        assert result.steps == schedule(5)
        traces.append(((tmp_path / name).read_bytes(), (tmp_path / f"{name}.pcapng").read_bytes()))
    assert traces[0] == traces[1]
    with CaptureFile(tmp_path / "first.pcapng") as capture:
        assert sum(1 for _ in capture) > 20
    assert schedule(5) != schedule(6)


@pytest.mark.parametrize("option", ["trace", "record"])
def test_a_file_that_cannot_be_written_is_no_violation(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").touch()
    unwritable = tmp_path / "file" / "x"
    failed = CliRunner().invoke(simulate_, ["--seed", "5", f"--{option}", str(unwritable)])
    assert isinstance(failed.exception, HarnessError)
    assert str(failed.exception) == f"{unwritable} cannot be written: Not a directory"


def test_a_run_that_fails_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a crash")

    monkeypatch.setattr(SimulatedClients, "finish", fails)
    result = simulate(5, trace=tmp_path / "trace")
    assert [violation.invariant for violation in result.violations] == ["no crash"]
    assert len((tmp_path / "trace").read_text().splitlines()) > 20


def test_the_real_thing_violates_nothing() -> None:
    results = [simulate(seed) for seed in range(RUNS)]
    assert [(result.seed, result.violations) for result in results if result.violations] == []
    assert sum(result.frames for result in results) > 50 * RUNS
    assert sum(result.records for result in results) > 10 * RUNS  # acknowledged
    assert sum(result.consumed for result in results) > 10 * RUNS
    assert sum(result.commits for result in results) > 3 * RUNS
    assert sum(result.transactions for result in results) > RUNS / 2


@pytest.mark.parametrize(("bug", "seed"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_deliberate_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a seed that finds nothing without the bug."""
    with monkeypatch.context() as patch:
        bug(patch)
        found = next(tried for tried in (seed, *range(MAX_SEEDS)) if simulate(tried).violations)
    assert simulate(found).violations == ()


def test_a_schedule_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    broker_outside_the_assignment_in_the_isr(monkeypatch)
    result = next(found for seed in range(MAX_SEEDS) if (found := simulate(seed)).violations)
    short = shrunk(result)
    assert len(short.steps) < len(result.steps)
    assert {v.invariant for v in short.violations} & {v.invariant for v in result.violations}


async def test_invariants_of_a_live_cluster() -> None:
    async with Cluster(3, world=memory(seed=1)) as cluster:
        with watch(cluster) as violations:
            await cluster.create_topic("t", partitions=4, replication_factor=3)
            old = await cluster.wait_for_controller()
            await cluster.kill(old.id)
            await cluster.wait_for_controller(other_than=old)
        assert violations == []


async def test_a_response_is_to_the_request_that_should_have_it() -> None:
    """Broker 2 lives in epoch 78; two connections of controller 3 use the correlation id 0."""
    async with Cluster(2, world=memory(seed=1)) as cluster:
        invariants = Invariants(cluster)
        (node,) = [m.node for m in cluster.members if isinstance(m, InProcessMember) and m.node and m.node.id == 2]
        epoch = node.broker.broker_epoch

        def frames(is_request: bool, message: wire.Message) -> None:
            source, destination = (3, 2) if is_request else (2, 3)
            header = wire.Header(message.__api_key__, 8, 0, "c")
            frame = (
                wire.encode_request(message, api_version=8, correlation_id=0, client_id="c")
                if is_request else wire.encode_response(message, api_version=8, correlation_id=0)
            )  # fmt: skip
            invariants.observe(FrameEvent(0, source, destination, "CONTROL", is_request, header, frame))

        def ask(broker_epoch: int) -> None:
            frames(True, wire.UpdateMetadataRequest(controller_id=3, controller_epoch=99, broker_epoch=broker_epoch))

        def respond(code: int) -> None:
            frames(False, wire.UpdateMetadataResponse(error_code=code))

        ask(epoch)
        ask(epoch - 1)
        respond(0)
        respond(wire.ErrorCode.STALE_BROKER_EPOCH)
        assert not invariants.found
        ask(epoch - 1)
        respond(0)
        assert [violation.invariant for violation in invariants.found] == ["bounced"]


def test_the_command(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = here("simulate", "--seeds", "0..3")
    assert (ran.code, ran.out.startswith("4 runs, 0 with violations, ")) == (0, True)
    one = here("simulate", "--seed", "5", "--trace", str(tmp_path / "trace"))
    assert (one.code, one.out.splitlines()[-1]) == (0, "1 run, 0 with violations")
    assert [line.split("  ")[-1] for line in one.out.splitlines()[:-1]] == list(map(str, schedule(5)))
    assert (tmp_path / "trace").stat().st_size
    assert here("simulate", "--seeds", "5..x").code == 2
    assert "seeds\n" in here("simulate", "--seeds", f"0..{10**30}").err
    assert here("simulate", "--seeds", "1..2", "--jobs", "1001").code == 2
    assert here("simulate", "--seeds", "1..2", "--trace", "x").code == 2
    broker_outside_the_assignment_in_the_isr(monkeypatch)
    failed = here("simulate", "--seeds", "2..3")
    assert failed.code == 3
    assert "  ISR: " in failed.out
    assert "steps suffice:" in failed.out


@pytest.mark.parametrize("jobs", [1, 2])
def test_seeds_are_not_listed_before_they_are_run(monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    monkeypatch.setattr(command, "_run_chunk", lambda seeds, steps: seeds)
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda jobs, mp_context: ThreadPoolExecutor(jobs))
    chunks = [*itertools.islice(command._chunks(range(10**15), 1, jobs), 10)]
    assert len({seed for chunk in chunks for seed in chunk}) == 200


@pytest.mark.slow
def test_the_command_in_several_processes(here: Here) -> None:
    ran = here("simulate", "--seeds", "0..20", "--jobs", "2")
    assert (ran.code, ran.out.startswith("21 runs, 0 with violations, ")) == (0, True)
