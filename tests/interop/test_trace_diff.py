"""The trace diff, without a controller: what it finds, what it may not hide, and the scripts that it runs."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

from tests.interop import trace_page
from tests.interop.trace_diff import Normaliser, StepTrace, compare
from tests.interop.trace_operations import Operations
from tests.interop.trace_scripts import BROKERS, FEWEST_ALIVE, SCRIPTED, SHORT, Step, random_script

_ID, _OTHER_ID, _NO_ID = (f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2, 0))


def update_metadata(*brokers: int, partitions: tuple[int, ...] = (1, 0)) -> dict[str, Any]:
    body = {
        "controller_epoch": 1,
        "topic_states": [{"topic_name": "t", "partition_states": [{"partition_index": p} for p in partitions]}],
        "live_brokers": [{"id": broker} for broker in brokers],
    }
    return {"api": "UpdateMetadata", "version": 8, "correlation_id": 0, "body": body}


def one_step(**changes: Any) -> StepTrace:
    fields: dict[str, Any] = {
        "step": "create(t)",
        "requests": {1: [update_metadata(1, 2), update_metadata(2, 1)]},
        "znodes": {"/controller_epoch": (1, 0), "/brokers/topics/t": ({"partitions": {"0": [1]}}, 3)},
        "answers": [{"error_code": 0}],
    }
    return StepTrace(**copy.deepcopy(fields | changes))


def test_equal_traces() -> None:
    found = compare([one_step()], [one_step()])
    assert found.differences == []
    assert (found.steps, found.requests, found.identical) == (1, 2, 2)
    assert (found.znodes, found.identical_znodes, found.answers, found.identical_answers) == (2, 2, 1, 1)
    assert found.by_chance == Counter()


@pytest.mark.parametrize(
    ("requests", "identical", "what"),
    [
        ([update_metadata(1, 2), update_metadata(2, 1, partitions=(0, 1))], 1, ["another order"]),
        ([update_metadata(1, 2), update_metadata(2, 1, partitions=(1, 2))], 1, ["partition_index: ours 0, Kafka's 2"]),
        ([update_metadata(1, 2), update_metadata(2, 3)], 1, ["live_brokers[1].id: ours 1, Kafka's 3"]),
        ([update_metadata(1, 2), update_metadata(2)], 1, ["live_brokers"]),
        ([update_metadata(1, 2)], 1, ["Kafka's None"]),
        ([update_metadata(1, 2), update_metadata(2, 1) | {"correlation_id": 9}], 1, ["correlation_id"]),
        ([update_metadata(1, 2), update_metadata(2, 1) | {"version": 7}], 1, ["version"]),
        ([update_metadata(1, 2), update_metadata(2, 1) | {"api": "StopReplica"}], 1, ["api"]),
    ],
)
def test_requests_that_differ(requests: list[Any], identical: int, what: list[str]) -> None:
    found = compare([one_step()], [one_step(requests={1: requests})])
    assert (found.requests, found.identical) == (2, identical)
    assert len(found.differences) == len(what)
    for difference, text in zip(found.differences, what, strict=True):
        assert text in str(difference)
        assert "step 0, create(t): broker 1, request 1" in str(difference)


def test_requests_of_another_broker_or_in_another_order_differ() -> None:
    first, second = update_metadata(1), update_metadata(2)
    assert compare([one_step(requests={1: [first]})], [one_step(requests={2: [first]})]).identical == 0
    swapped = compare([one_step(requests={1: [first, second]})], [one_step(requests={1: [second, first]})])
    assert swapped.identical == 0


def test_the_order_of_live_brokers_is_chance_and_counted() -> None:
    found = compare([one_step()], [one_step(requests={1: [update_metadata(2, 1), update_metadata(2, 1)]})])
    assert (found.identical, found.differences) == (2, [])
    assert found.by_chance == Counter({("UpdateMetadata", "live_brokers"): 1})


@pytest.mark.parametrize(
    "znodes",
    [
        {"/controller_epoch": (1, 0), "/brokers/topics/t": ({"partitions": {"0": [1]}}, 4)},
        {"/controller_epoch": (1, 0), "/brokers/topics/t": ({"partitions": {"0": [2]}}, 3)},
        {"/controller_epoch": (1, 0)},
        {"/controller_epoch": (1, 0), "/brokers/topics/t": ({"partitions": {"0": [1]}}, 3), "/more": ("", 0)},
    ],
)
def test_znodes_that_differ(znodes: dict[str, Any]) -> None:
    found = compare([one_step()], [one_step(znodes=znodes)])
    assert found.znodes - found.identical_znodes == len({d.where for d in found.differences}) == 1


def test_answers_and_missing_steps_differ() -> None:
    assert len(compare([one_step()], [one_step(answers=[{"error_code": 7}])]).differences) == 1
    assert len(compare([one_step()], [one_step(answers=[])]).differences) == 1
    (missing,) = compare([one_step(), one_step()], [one_step()]).differences
    assert "only ours went on" in str(missing)


def test_names_say_when_a_value_appeared_first() -> None:
    names = Normaliser({9092: "<port of 1>"})
    message = {
        "broker_epoch": 77,
        "topic_id": _ID,
        "nested": [{"topic_id": _OTHER_ID, "broker_epoch": -1, "port": 9092}, {"topic_id": _ID, "port": 101}],
        "none": {"topic_id": _NO_ID, "throttle_time_ms": 5},
    }
    assert names.message(message) == {
        "broker_epoch": "<broker epoch 1>",
        "topic_id": "<topic id 1>",
        "nested": [
            {"topic_id": "<topic id 2>", "broker_epoch": -1, "port": "<port of 1>"},
            {"topic_id": "<topic id 1>", "port": "<port 101>"},
        ],
        "none": {"topic_id": _NO_ID},
    }
    assert names.message({"broker_epoch": 78}) == {"broker_epoch": "<broker epoch 2>"}


def test_of_an_answer_the_text_and_the_order_do_not_matter_but_whether_there_is_a_text() -> None:
    names = Normaliser({})
    results: list[dict[str, Any]] = [
        {"name": "b", "error_message": "why"},
        {"name": "a", "error_message": None, "isr": [2, 1]},
    ]
    assert names.answer({"results": results}) == names.answer(
        {"results": [results[1], results[0] | {"error_message": "another"}]}
    )
    for text in ("", None):
        changed = [results[0] | {"error_message": text}, results[1]]
        assert names.answer({"results": results}) != names.answer({"results": changed})
    assert names.answer({"results": results}) != names.answer({"results": [results[0], results[1] | {"isr": [1, 2]}]})


def test_znodes_are_compared_as_json_with_ids_times_and_ports_replaced() -> None:
    names = Normaliser({9092: "<port of 1>"})
    data = b'{"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","timestamp":"1600000000000","port":9092,"at":["A://127.0.0.1:9092"]}'
    assert names.znode("/x", data) == {
        "topic_id": "<znode topic id 1>",
        "timestamp": "<timestamp>",
        "port": "<port of 1>",
        "at": ["A://127.0.0.1:<port of 1>"],
    }
    assert names.znode("/x", b'{"b":1,"a":[1,2]}') == names.znode("/x", b'{"a":[1,2],"b":1}')
    assert names.znode("/x", b'{"a":[2,1]}') != names.znode("/x", b'{"a":[1,2]}')
    assert names.znode("/x", b'{"timestamp":"soon"}') == {"timestamp": "soon"}
    assert names.znode("/x", b"\xff") == "\\xff"
    identity = b'{"version":"1","id":"abcdefghijklmnopqrstuv"}'
    assert names.znode("/cluster/id", identity) == {"version": "1", "id": "<cluster id>"}
    assert names.znode("/x", identity) != names.znode("/cluster/id", identity)


@pytest.mark.parametrize("script", [SHORT, SCRIPTED, random_script(1, 60), random_script(2, 60)])
def test_every_step_names_an_operation(script: list[Step]) -> None:
    assert all(callable(getattr(Operations, one.operation, None)) for one in script)


@pytest.mark.parametrize("script", [SHORT, SCRIPTED, *(random_script(seed, 60) for seed in range(20))])
def test_no_request_deletes_several_topics(script: list[Step]) -> None:
    made = {one.arguments["topic"] for one in script if one.operation in ("create", "create_in_zookeeper")}
    for one in script:
        if one.operation == "delete":
            assert len(made & set(one.arguments["topics"])) <= 1


def test_a_random_script_is_the_same_for_the_same_seed() -> None:
    assert random_script(1, 60) == random_script(1, 60) != random_script(2, 60)
    operations = Counter(one.operation for seed in (1, 2, 3) for one in random_script(seed, 60))
    wanted = {"create", "delete", "add_partitions", "reassign", "kill", "start", "bounce", "failover", "elect"}
    assert wanted | {"join_isr", "shrink_isr", "shut_down", "configure"} <= operations.keys()


@pytest.mark.parametrize("seed", range(20))
def test_a_random_script_keeps_brokers_alive_and_starts_only_dead_ones(seed: int) -> None:
    alive = set(BROKERS)
    for one in random_script(seed, 60):
        brokers = set(one.arguments.get("brokers", ()))
        match one.operation:
            case "kill":
                assert brokers <= alive
                alive -= brokers
            case "start":
                assert brokers.isdisjoint(alive)
                alive |= brokers
            case "bounce":
                assert brokers <= alive
        assert len(alive) >= FEWEST_ALIVE


def test_the_page_counts_and_lists_what_differs() -> None:
    equal = compare([one_step()], [one_step(requests={1: [update_metadata(2, 1), update_metadata(2, 1)]})])
    differs = compare([one_step()], [one_step(answers=[{"error_code": 7}])])
    page = trace_page.section({"scripted": equal})
    assert "| scripted | 1 | 2 of 2 | 2 of 2 | 1 of 1 | 1 |" in page
    assert "- `live_brokers` of UpdateMetadata (1 times): Kafka keeps them in a hash set" in page
    assert "There are no other differences." in page
    assert trace_page.problems({"scripted": equal}) == []
    worse = trace_page.section({"scripted": equal, "random": differs})
    assert "| random | 1 | 2 of 2 | 2 of 2 | 0 of 1 | 0 |" in worse
    assert "- random: step 0, create(t): answers: error_code: ours 0, Kafka's 7" in worse
    assert len(trace_page.problems({"scripted": equal, "random": differs})) == 1
