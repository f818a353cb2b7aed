"""The story of an incident: its steps in order, each with its packet, nothing that belongs to another."""

from __future__ import annotations

import dataclasses
import datetime
import re
from types import SimpleNamespace

import pytest

from kce.captures.exchanges.quality import Quality
from kce.captures.spark.analyses import errors
from kce.captures.spark.findings import ROWS, Exchange, Findings
from kce.captures.spark.incidents import incidents
from kce.captures.spark.report import render
from kce.captures.spark.timeline import strip_html

START = datetime.datetime(2026, 11, 21, 2, 45, tzinfo=datetime.UTC)


def at(seconds):
    return START + datetime.timedelta(seconds=seconds)


def row(table, **values):
    fields = ROWS[table].__dataclass_fields__
    return ROWS[table](**{name: values.get(name, () if name in ("packets", "files") else None) for name in fields})


def outage(partition, leaderless=None, leader=13.0, **more):
    packets = (10, *((20,) if leaderless is not None else ()), 30 + partition)
    return row(
        "outages", topic="orders", partition=partition, from_leader=1, to_leader=2, sign="answered Fetch",
        sign_time=at(10 + partition / 10), leaderless_time=None if leaderless is None else at(leaderless),
        leader_time=at(leader), real_ms=(leader - 10) * 1000, announced_ms=None if leaderless is None else 100.0,
        packets=packets, files=("x",) * len(packets), **more,
    )  # fmt: skip


def told(broker_id, api, seconds, packet, partition=0, began=13.0):
    return row(
        "news", topic="orders", partition=partition, leader=2, began=at(began), broker_id=broker_id, api=api,
        time=at(seconds), file="x", packet=packet,
    )  # fmt: skip


def client(name, gap_time, gap_ms, **more):
    values = {"failed": 1, "unanswered": 0, "is_replica": False, "api": "Produce", "packets": (5, 50), **more}
    files = ("x",) * len(values["packets"])
    return row("clients", client_id=name, gap_time=at(gap_time), gap_ms=gap_ms, files=files, **values)


def controller(epoch, id, first, last):
    return row(
        "controllers", controller_epoch=epoch, controller_id=id, first_time=at(first), last_time=at(last),
        packets=(100 * epoch, 100 * epoch + 1), files=("x", "x"), requests=9, brokers=("1",), decisions=3, fenced=0,
    )  # fmt: skip


def found(**tables):
    return Findings(files=("x",), quality=Quality(), tables={name: tuple(rows) for name, rows in tables.items()})


NEWS = [
    told(2, "LeaderAndIsr", 13, 30), told(3, "LeaderAndIsr", 13.2, 32), told(3, "UpdateMetadata", 13.4, 34),
    told(1, "LeaderAndIsr", 18, 90),  # the failed one, when it is back
    told(3, "LeaderAndIsr", 40, 99, began=40.0),  # another election
]  # fmt: skip


def test_the_steps_of_a_failed_broker_that_was_the_controller():
    (told_of,) = incidents(
        found(
            outages=[outage(0, leaderless=12.9), outage(1)], news=NEWS,
            controllers=[controller(1, 1, 0, 9), controller(2, 3, 12.5, 30)],
            clients=[
                client("slow", 9, 5000), client("early", 9, 2000), client("late", 9, 30_000),
                client("idle", 9, 5500, failed=0), client("replica", 9, 5600, is_replica=True),
                client("gone", 9, 5700, packets=(5,)),
            ],
        )
    )  # fmt: skip
    assert [(step.name, (step.time - START).total_seconds(), step.place) for step in told_of.steps] == [
        ("trigger", 10.1, ("x", 10)),
        ("election", 12.5, ("x", 200)),
        ("detection", 12.9, ("x", 20)),
        ("first LeaderAndIsr", 13.0, ("x", 30)),
        ("last LeaderAndIsr", 13.2, ("x", 32)),
        ("metadata spread", 13.4, ("x", 34)),
        ("clients back", 14.0, ("x", 50)),
    ]
    for part in (
        "2 partitions led by broker 1 lost their leader (orders-0, orders-1)", "controller 3 took over in epoch 2",
        "up to 3.00 s, announced for 100 ms", "Client slow: first good Produce response after 5.00 s at 02:45:14.000",
    ):  # fmt: skip
        assert part in told_of.text
    assert told_of.places == (("x", 10), ("x", 200), ("x", 20), ("x", 30), ("x", 32), ("x", 34), ("x", 50))
    assert strip_html(told_of).count("<i class") == 6


def failover(name, **more):
    values = {
        "from_leader": 1, "begin": at(10), "until": at(13), "client_id": name, "api": "Produce", "is_replica": False,
        "before_max_ms": 9.0, "during_max_ms": 3000.0, "failed": 0, "unanswered": 0, "hit": ("orders",),
        "hit_ms": (3000.0,), "packets": (7,), "files": ("x",), **more,
    }  # fmt: skip
    return row("failovers", **values)


def test_clients_that_suffered_are_told_with_their_packets():
    rows = [
        failover("hit"), failover("usual", before_max_ms=2000.0), failover("replica", is_replica=True),
        failover("lost", unanswered=1, hit=(), during_max_ms=None), failover("unharmed", hit=()),
        failover("other", from_leader=2), failover("later", begin=at(60), until=at(61)),
    ]  # fmt: skip
    (told_of,) = incidents(found(outages=[outage(0)], news=NEWS, failovers=rows))
    assert [each.text for each in told_of.clients] == [
        "Produce of hit took up to 3.00 s, 0 failed, 0 got no response; hit: orders for 3.00 s",
        "Produce of lost: 0 failed, 1 got no response",
    ]
    assert ("x", 7) in told_of.places


def test_every_step_links_to_its_packet_on_the_page():
    """Also where the packet is no request that is shown: the end of a connection, a response."""
    shown = Exchange("x", 30, at(13), "LeaderAndIsr", 7, "1", "2", "CONTROL", "NONE", 1.0, 31, "{}")
    made = found(
        outages=[outage(0, leaderless=12.9)], news=NEWS, failovers=[failover("hit")],
        controllers=[controller(1, 1, 0, 9), controller(2, 3, 12.5, 30)],
    )  # fmt: skip
    page = render(dataclasses.replace(made, exchanges=(shown,)))
    story = page[page.index('id="incidents"') : page.index('id="findings"')]
    steps = re.findall(r"\(packet (.*?)\)</span>", story)
    assert len(steps) == 6
    for step in steps:
        target = re.fullmatch(r'<a href="#(\S+)">\d+</a>', step)
        assert target is not None, step
        assert f'<article id="{target[1]}">' in page
    assert '<li class="client">Produce of hit took up to 3.00 s' in story


def test_a_controlled_shutdown_is_told_in_the_story_of_what_it_began():
    def bounce(seconds):
        return row("bounces", broker_id=1, shutdown_time=None if seconds is None else at(seconds), back_time=at(60))

    for seconds, is_told in ((9.5, True), (-30, False), (50, False), (None, False)):
        (told_of,) = incidents(found(outages=[outage(0, leaderless=12.9)], news=NEWS, bounces=[bounce(seconds)]))
        assert ("It was granted a controlled shutdown at 02:45:09.500." in told_of.text) == is_told


def test_what_another_broker_learns_by_coming_back_is_no_news_of_the_incident():
    """Broker 4 died, too, and is told of all leaders when it is back."""
    back = [
        row("bounces", broker_id=4, last_time=at(9), back_time=at(20)),
        row("bounces", broker_id=3, last_time=at(5), back_time=at(7)),
    ]  # fmt: skip
    late = [told(4, "UpdateMetadata", 19.9, 95), told(4, "LeaderAndIsr", 20.5, 96), told(4, "UpdateMetadata", 21, 97)]
    (told_of,) = incidents(found(outages=[outage(0)], news=[*NEWS, *late], bounces=back))
    assert [step.place for step in told_of.steps[1:]] == [("x", 30), ("x", 32), ("x", 34)]
    # one that died after it had been told was told
    back[0] = row("bounces", broker_id=4, last_time=at(14), back_time=at(20))
    (told_of,) = incidents(
        found(outages=[outage(0)], news=[*NEWS, told(4, "UpdateMetadata", 14, 40), *late], bounces=back)
    )
    assert told_of.steps[-1].place == ("x", 40)


def zombie(epoch, id, *packets, seconds=13.6):
    return row(
        "zombies", controller_id=id, controller_epoch=epoch, later_epoch=epoch + 1, requests=len(packets),
        first_time=at(seconds), last_time=at(seconds + 1), brokers=("2", "3"), packets=packets,
        files=("x",) * len(packets),
    )  # fmt: skip


def test_the_story_of_a_controller_that_was_cut_off_tells_that_it_was_fenced():
    epochs = [controller(1, 1, 0, 9), controller(2, 3, 12.5, 30), controller(3, 2, 40, 50)]
    zombies = [zombie(1, 1, 60, 61), zombie(2, 3, 70, seconds=41)]
    of_outage, of_controllers = incidents(
        found(outages=[outage(0, leaderless=12.9)], news=NEWS, controllers=epochs, zombies=zombies)
    )
    assert of_outage.steps[-1][::4] == ("zombie fenced", ("x", 60))
    assert of_outage.text.endswith(
        "Controller 1 (epoch 1) acted as a zombie: 2 control requests of it refused by brokers 2 and 3, the last at "
        "02:45:14.600."
    )
    assert of_controllers.heading.startswith("Controller 2 takes over")
    assert of_controllers.text.endswith(
        "Controller 3 (epoch 2) acted as a zombie: 1 control request of it refused by brokers 2 and 3."
    )
    assert [step.name for step in of_controllers.steps] == ["old controller", "election", "zombie fenced"]


def test_a_client_that_was_back_before_the_announcement_did_not_wait_for_it():
    (told_of,) = incidents(found(outages=[outage(0)], news=NEWS, clients=[client("early", 9, 2000)]))
    assert [(step.name, step.look) for step in told_of.steps[:3]] == [
        ("trigger", "silence"), ("first LeaderAndIsr", "silence"), ("last LeaderAndIsr", "change"),
    ]  # fmt: skip
    assert "clients back" not in [step.name for step in told_of.steps]


def test_a_partition_without_a_leader_at_the_end_is_said():
    lost = row(
        "outages", topic="orders", partition=0, from_leader=1, leaderless_time=at(12), packets=(20,), files=("x",)
    )
    (told_of,) = incidents(found(outages=[lost]))
    assert [step.name for step in told_of.steps] == ["detection"]
    # since when the broker was silent is not known
    assert told_of.heading == "Partitions of broker 1 without a leader from 02:45:12.000"
    assert "1 partition had no leader until the end" in told_of.text
    assert strip_html(told_of) is None


def test_a_change_of_the_controller_alone_is_an_incident_too():
    handed, at_once = incidents(
        found(controllers=[controller(1, 1, 0, 9), controller(2, 3, 12, 30), controller(3, 3, 25, 40)])
    )
    assert handed.heading == "Controller 3 takes over from broker 1 at 02:45:12.000"
    assert handed.text.endswith("3.00 s later.")
    assert [step.place for step in handed.steps] == [("x", 101), ("x", 200)]
    assert at_once.heading == "Controller 3 takes over again at 02:45:25.000"
    assert "at the same time" in at_once.text


def test_planned_moves_are_no_incident():
    planned = row("outages", from_leader=1, to_leader=2, sign="answered Fetch", real_ms=3.0, leader_time=at(3))
    assert incidents(found(outages=[planned], controllers=[controller(1, 1, 0, 9)])) == []


@pytest.mark.parametrize(
    ("error", "severity"),
    [("COORDINATOR_LOAD_IN_PROGRESS", "note"), ("CONCURRENT_TRANSACTIONS", "note"), ("UNKNOWN_MEMBER_ID", "warning")],
)
def test_a_coordinator_that_is_not_ready_yet_is_no_warning(error, severity):
    refused = row("errors", api="InitProducerId", error=error, error_code=1, broker="1", client_id="c", client="h",
                  count=5, is_control=False, first_time=START, last_time=START, packets=(7,), files=("x",))  # fmt: skip
    (finding,) = errors.findings(SimpleNamespace(errors=[refused]))
    assert finding.severity == severity


def test_a_silence_without_a_change_of_leaders_is_an_incident_of_its_own():
    silence = row("silences", broker_id=1, sign="answered Fetch", begin=at(10), end=at(12), silent_ms=2000.0, waiting=3,
                  clients=("replicas",), packets=(5, 7, 9), files=("x",) * 3)  # fmt: skip
    (told_of,) = incidents(found(silences=[silence]))
    assert told_of.heading == "Broker 1 silent from 02:45:10.000"
    assert told_of.text == (
        "Broker 1 showed no sign of life for 2.00 s, while 3 requests of replicas waited. No leader changed by it."
    )
    assert [(step.name, step.place) for step in told_of.steps] == [("trigger", ("x", 5)), ("back", ("x", 9))]
    lasting = dataclasses.replace(silence, end=None)
    (told_of,) = incidents(found(silences=[lasting]))
    assert [step.name for step in told_of.steps] == ["trigger"]
    # as an outage it is a step of that
    (told_of,) = incidents(found(silences=[silence], outages=[outage(0)]))
    assert [(step.name, step.place) for step in told_of.steps][:2] == [
        ("trigger", ("x", 10)),
        ("old leader back", ("x", 9)),
    ]
