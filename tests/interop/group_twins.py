"""Random lives of groups of several members, which both twins must answer alike.

    python -m tests.interop.group_twins --seed 5 --steps 1000

Unlike those of twins.py the requests of a member build on its answers, and some wait for others: each is sent on a
connection that is free, and after each step the same connections must have been answered, with the same. Members are
known by their place in the script, static members replace each other, and transactions commit offsets beside them.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.wire import ErrorCode
from kce.wire.registry import BY_KEY
from tests.interop.group_requests import GROUPS, Place, Script, text
from tests.interop.random_requests import Asked, Given
from tests.interop.twin import PATIENCE_S, Twin, differences, is_concurrent
from tests.interop.twins import command, finish, restartable_twins, versions

SETTINGS: Final = {"group.max.size": "5", "group.min.session.timeout.ms": "100"}
_LANES: Final = 9
#: when so many wait, they begin again
_CROWDED: Final = 7
#: a request that has not been answered by then waits for others
_QUIET_S: Final = 0.2
#: until the others have been answered that waited for one
_FOLLOWING_S: Final = 0.05
#: with hasty members nothing is asked for so long, in some of the steps
_PAUSE_S: Final = 0.9
_PAUSED_PART: Final = 0.12
#: of these a difference is asked for again: something may have timed out in between
_READS: Final = frozenset({"DescribeGroups", "ListGroups", "OffsetFetch"})
_ATTEMPTS: Final = 3
_RACE_S: Final = 0.3
_WAITING_APIS: Final = frozenset({"JoinGroup", "SyncGroup"})


class Known:
    """What a twin has given to members: shared by its connections."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.given: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def clear(self) -> None:
        for kind in (self.names, self.given, self.counts):
            kind.clear()


class Lane(Twin):
    """One connection. ``place``: of the member that asks."""

    def __init__(self, name: str, address: str, path: str, broker_epoch: int = -1) -> None:
        super().__init__(name, address, path, broker_epoch)
        self.known = Known()
        self.place: Place | None = None

    def _learn(self, message: wire.Message, answer: wire.Message) -> None:
        super()._learn(message, answer)
        if isinstance(answer, wire.JoinGroupResponse) and answer.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            assert self.place is not None
            place = self.place.member.of
            if answer.member_id not in self.known.names:
                self.known.counts[place] += 1
                self.known.names[answer.member_id] = f"{place}#{self.known.counts[place]}"
            self.known.given[place] = answer.member_id

    def made(self, value: Any) -> Any:
        match value:
            case Given("member", of):
                return self.known.given.get(of, "none")
            case Given("an earlier member", of):
                return next((i for i, name in self.known.names.items() if name == f"{of}#1"), "none")
            case Given("assignments", of):
                return tuple(
                    wire.SyncGroupRequestAssignment(member_id=member_id, assignment=name.encode())
                    for member_id, name in self.known.names.items()
                    if name.startswith(of)
                )
        return super().made(value)

    def comparable(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str) and value in self.known.names:
            return self.known.names[value]
        return super().comparable(value, name)


class Stage:
    """The connections to both, and the answers that have come on each."""

    def __init__(self, both: tuple[Lane, Lane], nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._lanes = [[twin.another() for _ in range(_LANES)] for twin in both]
        self._answers: list[dict[int, Any]] = [{}, {}]
        self._came = trio.Event()
        self.waiting: set[int] = set()

    def free(self) -> int | None:
        return next((lane for lane in range(_LANES) if lane not in self.waiting), None)

    def send(self, lane: int, place: Place, request: Asked) -> None:
        self.waiting.add(lane)
        for number, lanes in enumerate(self._lanes):
            lanes[lane].place = place
            self._nursery.start_soon(self._ask, number, lane, request)

    async def _ask(self, number: int, lane: int, request: Asked) -> None:
        twin = self._lanes[number][lane]
        answer = await twin.ask(twin.made(request.body), request.version, limit_s=math.inf)
        while is_concurrent(answer):
            await trio.sleep(0.02)
            answer = await twin.ask(twin.made(request.body), request.version, limit_s=math.inf)
        self._answers[number][lane] = answer
        self._came.set()

    async def settled(self, lane: int | None, *, may_wait: bool) -> dict[int, tuple[Any, Any]]:
        """What both have answered, once that is on the same connections. Raises trio.TooSlowError."""
        with trio.fail_after(PATIENCE_S):
            while True:
                self._came = trio.Event()
                kafkas, ours = self._answers
                is_answered = lane in kafkas and lane in ours
                quiet = math.inf
                if kafkas.keys() == ours.keys() and (is_answered or may_wait):
                    if is_answered and len(kafkas) == len(self.waiting):
                        break
                    quiet = _FOLLOWING_S if is_answered else _QUIET_S
                with trio.move_on_after(quiet) as scope:
                    await self._came.wait()
                if scope.cancelled_caught and kafkas.keys() == ours.keys():
                    break
        found = {
            number: (self._lanes[0][0].comparable(kafkas[number]), self._lanes[1][0].comparable(ours[number]))
            for number in sorted(kafkas)
        }
        self.waiting -= found.keys()
        self._answers = [{}, {}]
        return found

    def came(self) -> str:
        """Of a step after which they did not answer the same requests."""
        shown = [
            {lane: lanes[0].comparable(answer) for lane, answer in sorted(answers.items())}
            for lanes, answers in zip(self._lanes, self._answers, strict=True)
        ]
        return f"Kafka has answered {shown[0]}\n    ours {shown[1]}"

    async def disconnect(self) -> None:
        for lanes in self._lanes:
            for lane in lanes:
                await lane.disconnect()

    async def close(self) -> None:
        """Remove all members, and the groups, and forget them."""
        for lanes in self._lanes:
            asking, known = lanes[0].another(), lanes[0].known
            for group in GROUPS:
                described = await asking.ask(wire.DescribeGroupsRequest(groups=(group,)), 5)
                assert isinstance(described, wire.DescribeGroupsResponse)
                pending = {i for i, name in known.names.items() if name.startswith(group)}
                for member_id in pending | {one.member_id for one in described.groups[0].members}:
                    leaving = wire.MemberIdentity(member_id=member_id)
                    await asking.ask(wire.LeaveGroupRequest(group_id=group, members=(leaving,)), 5)
                await _delete(asking, group)
            await asking.disconnect()
            known.clear()


async def _delete(asking: Lane, group: str) -> None:
    """A group without members, once its join phase has ended, too."""
    with trio.fail_after(PATIENCE_S):
        while True:
            deleted = await asking.ask(wire.DeleteGroupsRequest(groups_names=(group,)), 2)
            assert isinstance(deleted, wire.DeleteGroupsResponse)
            if deleted.results[0].error_code in (0, ErrorCode.GROUP_ID_NOT_FOUND):
                break
            await trio.sleep(_FOLLOWING_S)


def _have_chosen(answers: Iterable[tuple[Any, Any]]) -> bool:
    """Whether they differ in a choice that Kafka makes by the order of a hash table: of a leader, or of a protocol."""
    return any(
        isinstance(one, dict)
        and isinstance(other, dict)
        and "leader" in one
        and one["error_code"] == other["error_code"] == 0
        and (one["leader"], one["protocol_name"]) != (other["leader"], other["protocol_name"])
        for one, other in answers
    )


async def run(folder: Path, *, seed: int, steps: int, hasty: bool = False, restarts: int = 0) -> list[str]:
    """A report on the first request after which the answers differ.

    ``hasty``: members time out. The brokers are killed or shut down so often, as members are in the middle of anything.
    """
    random, reports, step = Random(seed), list[str](), 0
    every = steps // (restarts + 1)
    async with restartable_twins(folder, properties=SETTINGS, kind=Lane) as (both, restart):
        known = {BY_KEY[key].name: found for key, found in (await versions(both)).items()}
        while step < steps and not reports:
            script, is_open = Script(random, known, hasty=hasty), True
            while step < steps and is_open:
                async with trio.open_nursery() as nursery:
                    stage = Stage(both, nursery)
                    while step < steps and is_open:
                        is_open = await _step(stage, script, f"seed {seed}, step {step}", reports)
                        step += 1
                        if hasty and random.random() < _PAUSED_PART:
                            await trio.sleep(_PAUSE_S)
                        if is_open and step % every == 0:
                            break
                    nursery.cancel_scope.cancel()
                await stage.disconnect()
                if is_open and step < steps:
                    script.waiting.clear()
                    await restart(random.random() < 0.5)
            await stage.close()
    return reports


async def _step(stage: Stage, script: Script, where: str, reports: list[str]) -> bool:
    """Whether they go on. They begin again when too many wait, and when the twins have chosen leaders of their own."""
    lane = stage.free()
    if lane is None or len(script.waiting) >= _CROWDED:
        return False
    place, request = script.next()
    for attempt in range(_ATTEMPTS):
        script.waiting[lane] = place, request
        stage.send(lane, place, request)
        try:
            answers = await stage.settled(lane, may_wait=request.api in _WAITING_APIS)
        except trio.TooSlowError:
            reports.append(f"{where}: {text(request)}\n    {stage.came()}{script.waiting_text()}")
            return False
        if _have_chosen(answers.values()):
            return False
        found = []
        for number, (kafkas, ours) in answers.items():
            asker, asked_there = script.waiting.pop(number)
            script.answered(asker, asked_there, kafkas)
            if lines := "".join(f"\n    {line}" for line in differences(kafkas, ours)):
                found.append(f"\n  answer to {text(asked_there)}{lines}")
        if not found or request.api not in _READS:
            break
        await trio.sleep(_RACE_S * (attempt + 1 < _ATTEMPTS))
    if found:
        reports.append(f"{where}: {text(request)}{''.join(found)}{script.waiting_text()}")
    return not found


def main() -> int:
    parser = command("python -m tests.interop.group_twins", __doc__)
    kind = parser.add_mutually_exclusive_group()  # sessions begin again when a group is loaded, at another time in each
    kind.add_argument("--hasty", action="store_true", help="with pauses in which members and rebalances time out")
    kind.add_argument("--restarts", type=int, default=0, help="how often the brokers end and start (default: 0)")
    arguments = parser.parse_args()
    options = {
        "seed": arguments.seed,
        "steps": arguments.steps,
        "hasty": arguments.hasty,
        "restarts": arguments.restarts,
    }
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), **options))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
