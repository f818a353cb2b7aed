"""What the tables of an analysis mean, in words: conclusions, how serious they are, and the packets that show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from captures.quality import Quality
from captures.spark.findings import Finding, Findings

#: From here on a broker that hears of a new leader so much later than others is worth a warning.
SLOW_PROPAGATION_MS = 1000.0

#: So many generations of a group within a minute are a storm.
REBALANCE_STORM = 5

#: More retransmitted segments than this share are trouble.
LOSSY_SHARE = 0.01

_ORDER = {"alarm": 0, "warning": 1, "note": 2}

#: Rows of one table that are told one by one; of more, how many there are besides.
_MOST = 5


def sentences(found: Findings) -> list[Finding]:
    """All conclusions, most serious first; of equally serious ones, in the order of the list below."""
    said = [finding for name, tell in _TELL if name in found.ran for finding in tell(found)]
    return sorted(said, key=lambda finding: _ORDER[finding.severity])


def _zombies(found: Findings) -> Iterator[Finding]:
    for row in found.zombies:
        requests = "a control request" if row.requests == 1 else f"{row.requests} control requests"
        yield Finding(
            "zombies",
            "alarm",
            f"Controller {row.controller_id} (epoch {row.controller_epoch}) acted as a zombie: after epoch "
            f"{row.later_epoch} had begun it sent {requests} and was fenced by {brokers(row.brokers)} with "
            f"STALE_CONTROLLER_EPOCH (packets {some(row.packets)}).",
            _evidence(row),
        )
    if found.controllers and not found.zombies:
        yield Finding("zombies", "note", "No zombie controller: none was fenced after a later epoch had begun.")
    if _is_kraft(found.quality) and not found.controllers:
        yield Finding(
            "zombies", "note", "There is no ZooKeeper-mode controller in this traffic: it is that of KRaft nodes."
        )


def _is_kraft(quality: Quality) -> bool:
    return bool(quality.kraft)


def _overlaps(found: Findings) -> Iterator[Finding]:
    for row in found.overlaps:
        taken = row.requests - row.refused
        if not taken:
            continue  # a zombie, told as one
        same = row.later_epoch == row.controller_epoch
        yield Finding(
            "overlaps",
            "alarm" if same else "warning",
            f"Two controllers at once: controller {row.controller_id} (epoch {row.controller_epoch}) sent "
            f"{count(row.requests, 'control request')} after controller {row.later_id} had begun epoch "
            f"{row.later_epoch}; {taken} of them no broker refused (packets {some(row.packets)}).",
            _evidence(row),
        )


def _fenced(found: Findings) -> Iterator[Finding]:
    for row in found.fenced:
        if row.error == "STALE_BROKER_EPOCH":
            sender = (
                f"controller {row.controller_id} (epoch {row.controller_epoch})"
                if row.controller_id is not None
                else f"broker {row.sender_broker_id}"
            )
            yield Finding(
                "fenced",
                "warning",
                f"Broker {row.broker} refused {row.requests} {row.api} of {sender} with STALE_BROKER_EPOCH "
                f"(packets {some(row.packets)}): a broker came back in between.",
                _evidence(row),
            )


def _controllers(found: Findings) -> Iterator[Finding]:
    if len(found.controllers) == 1:
        (only,) = found.controllers
        yield Finding(
            "controllers",
            "note",
            f"Controller {only.controller_id} (epoch {only.controller_epoch}) was the only one: "
            f"{count(only.requests, 'control request')} to {brokers(only.brokers)}.",
        )
    elif found.controllers:
        turns = ", ".join(
            f"{c.controller_id} in epoch {c.controller_epoch} from {c.first_time:%H:%M:%S}" for c in found.controllers
        )
        yield Finding("controllers", "note", f"{len(found.controllers)} controllers took turns: {turns}.")


def _leadership(found: Findings) -> Iterator[Finding]:
    if not found.leadership:
        return
    first = [c for c in found.leadership if c.from_leader is None]
    deleted = [c for c in found.leadership if c.to_leader == -2]
    moved = len(found.leadership) - len(first) - len(deleted)
    yield Finding(
        "leadership",
        "note",
        f"{count(len(first), 'partition')} got a leader; leaders changed {count(moved, 'time')} after that"
        + (f"; {count(len(deleted), 'partition')} were deleted." if deleted else "."),
    )
    last = {(c.topic, c.topic_id, c.partition): c for c in found.leadership}
    if headless := [c for c in last.values() if c.to_leader == -1]:
        names = [f"{c.topic}-{c.partition}" for c in headless]
        yield Finding(
            "leadership",
            "warning",
            f"Without a leader at the end: {some(names)}.",
            tuple((c.file, c.packet) for c in headless[:_MOST]),
        )


def _churn(found: Findings) -> Iterator[Finding]:
    if headless := [row for row in found.churn if row.leaderless_ms > 0]:
        longest = max(headless, key=lambda row: row.leaderless_ms)
        yield Finding(
            "churn",
            "warning",
            f"{count(len(headless), 'partition')} had no leader for a while; {longest.topic}-{longest.partition} "
            f"longest, for {longest.leaderless_ms:,.0f} ms.",
            _evidence(longest),
        )


def _unclean(found: Findings) -> Iterator[Finding]:
    for row in found.unclean_elections:
        yield Finding(
            "unclean_elections",
            "alarm",
            f"Unclean election: {row.topic}-{row.partition} got broker {row.leader} as leader in leader epoch "
            f"{row.leader_epoch}, while in sync were {some(row.isr_before) or 'none'} (packet {row.packet}). What only "
            "those had is lost.",
            ((row.file, row.packet),),
        )


def _isr(found: Findings) -> Iterator[Finding]:
    for row in found.isr_storms:
        lasted = (row.last_time - row.first_time).total_seconds()
        whose = f", of {brokers(map(str, row.brokers))}" if row.brokers else ""
        yield Finding(
            "isr_storms",
            "warning",
            f"ISR storm at {row.first_time:%H:%M:%S}: {row.changes} changes of {count(row.partitions, 'partition')} "
            f"within {lasted:.1f} s, {count(row.shrinks, 'shrink')}{whose}, and {count(row.expansions, 'expansion')}.",
            _evidence(row),
        )


def _bounces(found: Findings) -> Iterator[Finding]:
    for broker_id in dict.fromkeys(row.broker_id for row in found.bounces):
        rows = [row for row in found.bounces if row.broker_id == broker_id]
        times = ", ".join(f"{row.back_time:%H:%M:%S}" for row in rows[:_MOST])
        often = "once" if len(rows) == 1 else count(len(rows), "time")
        yield Finding(
            "bounces",
            "warning",
            f"Broker {broker_id} came back {often}, at {times}{' and later' * (len(rows) > _MOST)}.",
            tuple((row.file, row.packet) for row in rows),
        )


def _behind_data(found: Findings) -> Iterator[Finding]:
    if rows := found.control_behind_data:
        control = sum(row.control_requests for row in rows)
        data = sum(row.data_requests for row in rows)
        behind = sum(row.behind for row in rows)
        most = max(row.most_ahead for row in rows)
        yield Finding(
            "control_behind_data",
            "warning",
            f"{count(control, 'control request')} shared a listener with {count(data, 'other')} at "
            f" {brokers(dict.fromkeys(row.broker for row in rows))}; {behind} came behind others that had no answer yet"
            + (f", up to {most} of them" if behind else "")
            + ". A control.plane.listener.name keeps them apart (KIP-291).",
            tuple(place for row in rows for place in _evidence(row)),
        )


def _cost(found: Findings) -> Iterator[Finding]:
    for row in found.metadata_cost:
        if row.changes:
            yield Finding(
                "metadata_cost",
                "note",
                f"UpdateMetadata of controller {row.controller_id} (epoch {row.controller_epoch}): {row.states:,} "
                f"states in {count(row.requests, 'request')} told {count(row.changes, 'change')}, "
                f"{row.bytes_per_change:,.0f} bytes each.",
            )  # fmt: skip


def _propagation(found: Findings) -> Iterator[Finding]:
    if found.propagation:
        slowest = max(found.propagation, key=lambda row: row.max_ms)
        yield Finding(
            "propagation",
            "warning" if slowest.max_ms >= SLOW_PROPAGATION_MS else "note",
            f"Broker {slowest.broker} was told of a new leader {slowest.max_ms:,.0f} ms after the first that was told "
            f"of it (packet {some(slowest.packets)}); half of all news reached it within {slowest.p50_ms:,.0f} ms.",
            _evidence(slowest),
        )


def _disagreements(found: Findings) -> Iterator[Finding]:
    for row in found.disagreements:
        leaders = sorted({*row.in_leader_and_isr, *row.in_update_metadata})
        yield Finding(
            "disagreements",
            "alarm",
            f"Brokers were told different leaders of {row.topic}-{row.partition} in leader epoch {row.leader_epoch}: "
            f"{_and([str(leader) for leader in leaders])} (packets {some(row.packets)}).",
            _evidence(row),
        )


def _resends(found: Findings) -> Iterator[Finding]:
    resent = [row for row in found.resends if row.unanswered]
    for row in resent[:_MOST]:
        yield Finding(
            "resends",
            "warning",
            f"Controller {row.controller_id} (epoch {row.controller_epoch}) sent the same {row.api} {row.requests} "
            f"times to broker {row.broker}; {row.unanswered} of them got no answer (packets {some(row.packets)}).",
            _evidence(row),
        )
    if (more := len(resent) - _MOST) > 0:
        yield Finding("resends", "warning", f"{count(more, 'other control request')} had to be resent.")
    if again := [row for row in found.resends if not row.unanswered]:
        requests = sum(row.requests - 1 for row in again)
        yield Finding(
            "resends",
            "note",
            f"{count(requests, 'control request')} told a broker again what it knew already.",
            _evidence(again[0]),
        )


def _unanswered(found: Findings) -> Iterator[Finding]:
    if found.unanswered:
        missing: Counter[tuple[str, str]] = Counter()
        for row in found.unanswered:
            missing[row.api, row.broker] += row.requests
        by_api = ", ".join(f"{n} {api} to broker {broker}" for (api, broker), n in missing.most_common(_MOST))
        total = missing.total()
        more = " and others" * (len(missing) > _MOST)
        yield Finding(
            "unanswered",
            "note",
            f"{count(total, 'request')} without an answer in the capture: {by_api}{more}.",
            tuple(place for row in found.unanswered[:_MOST] for place in _evidence(row)),
        )


def _rebalances(found: Findings) -> Iterator[Finding]:
    for row in found.rebalances:
        storm = row.most_in_a_minute >= REBALANCE_STORM
        yield Finding(
            "rebalances",
            "warning" if storm else "note",
            f"{'Rebalance storm: group' if storm else 'Group'} {row.group_id} went through "
            f"{count(row.generations, 'generation')}, {row.most_in_a_minute} within a minute "
            f"({count(row.joins, 'JoinGroup')}, {count(row.leaves, 'LeaveGroup')}).",
            _evidence(row),
        )


def _regressions(found: Findings) -> Iterator[Finding]:
    for row in found.regressions:
        if row.epoch == "controller_epoch" and not row.refused:
            yield Finding(
                "regressions",
                "alarm",
                f"The controller epoch went down for broker {row.broker}, which did not refuse it: {row.found} after "
                f"{row.highest} (packet {row.packet}).",
                ((row.file, row.packet),),
            )
    # before Kafka 2.4 reassignment raised leader epochs behind the back of what the controller sent later
    leaders = [row for row in found.regressions if row.epoch == "leader_epoch"]
    if leaders:
        partitions = list(dict.fromkeys(f"{row.topic}-{row.partition}" for row in leaders))
        yield Finding(
            "regressions",
            "warning",
            f"Leader epochs went down {count(len(leaders), 'time')} in what brokers were told, of "
            f"{some(partitions, 5)}: first from {leaders[0].highest} to {leaders[0].found} for broker "
            f"{leaders[0].broker} (packet {leaders[0].packet}).",
            tuple(dict.fromkeys((row.file, row.packet) for row in leaders)),
        )


def _transport(found: Findings) -> Iterator[Finding]:
    retransmits = sum(row.retransmits for row in found.transport)
    segments = sum(row.segments for row in found.transport)
    if retransmits:
        worst = max(found.transport, key=lambda row: row.retransmits)
        yield Finding(
            "transport",
            "warning" if retransmits > LOSSY_SHARE * segments else "note",
            f"{count(retransmits, 'segment')} of Kafka connections sent again; most on {worst.connection}, "
            f"{worst.retransmits} of {worst.segments}.",
            _evidence(worst),
        )
    if resets := [row for row in found.transport if row.resets]:
        yield Finding(
            "transport",
            "note",
            f"{count(len(resets), 'Kafka connection')} reset.",
            tuple(place for row in resets[:_MOST] for place in _evidence(row)),
        )


def _stale_partitions(found: Findings) -> Iterator[Finding]:
    if found.stale_partitions:
        requests = sum(row.requests for row in found.stale_partitions)
        yield Finding(
            "stale_partitions",
            "note",
            f"{requests} LeaderAndIsr answer{'s carry' if requests > 1 else ' carries'} STALE_CONTROLLER_EPOCH for "
            "single partitions: the brokers had those leader epochs already. That is no fencing.",
        )


_TELL: Sequence[tuple[str, Callable[[Findings], Iterable[Finding]]]] = (
    ("zombies", _zombies),
    ("overlaps", _overlaps),
    ("unclean_elections", _unclean),
    ("disagreements", _disagreements),
    ("regressions", _regressions),
    ("fenced", _fenced),
    ("isr_storms", _isr),
    ("bounces", _bounces),
    ("control_behind_data", _behind_data),
    ("controllers", _controllers),
    ("leadership", _leadership),
    ("churn", _churn),
    ("propagation", _propagation),
    ("resends", _resends),
    ("metadata_cost", _cost),
    ("rebalances", _rebalances),
    ("transport", _transport),
    ("unanswered", _unanswered),
    ("stale_partitions", _stale_partitions),
)


def _evidence(row: Any) -> tuple[tuple[str, int], ...]:
    return tuple(zip(row.files, row.packets, strict=False))


def brokers(ids: Iterable[str]) -> str:
    ids = list(ids)
    return f"broker{'s' * (len(ids) != 1)} {_and(ids)}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def some(items: Iterable[object], most: int = 10) -> str:
    texts = [str(item) for item in items]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _and(items: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1] if items else "")))
