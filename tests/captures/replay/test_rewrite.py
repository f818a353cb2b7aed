"""Epochs that are rewritten, and answers that are compared."""

from __future__ import annotations

import pytest

from kce import wire
from kce.captures.replay.rewrite import Rewriter, differences, newest_controller_epoch
from tests.captures.replay.recordings import Conversation, update


def test_epochs_are_shifted_and_what_was_stale_stays_stale():
    talk = Conversation()
    state = wire.UpdateMetadataPartitionState(controller_epoch=2, isr=(1,), replicas=(1,))
    topic = wire.UpdateMetadataTopicState(topic_name="a", partition_states=(state,))
    for number, (epoch, broker_epoch) in enumerate([(3, 25), (2, 25), (3, 40), (3, 25), (3, -1)]):
        body = wire.UpdateMetadataRequest(
            controller_id=1, controller_epoch=epoch, broker_epoch=broker_epoch, topic_states=(topic,)
        )
        talk.ask(body, 6, number, "1")
    requests = [step.request for step in talk.recording().steps]
    assert newest_controller_epoch(requests) == 3
    rewrite = Rewriter([(request, 1) for request in requests], controller_shift=4, broker_epochs={1: 1000})
    bodies = [rewrite(request) for request in requests]
    assert [(b.controller_epoch, b.broker_epoch) for b in bodies] == [
        (7, 1000), (6, 1000), (7, 1000), (7, 985), (7, -1),
    ]  # fmt: skip
    assert {b.topic_states[0].partition_states[0].controller_epoch for b in bodies} == {6}
    assert Rewriter([(request, 2) for request in requests], broker_epochs={1: 5})(requests[0]) == requests[0].body
    with pytest.raises(ValueError, match="controller epoch 2 shifted by -3 would be below 0"):
        Rewriter(controller_shift=-3)(requests[1])


def test_an_epoch_is_that_of_the_broker_it_speaks_of():
    talk = Conversation()
    shutdown = wire.ControlledShutdownRequest(broker_id=2, broker_epoch=30)
    talk.ask(shutdown, 3, 1, "2")
    talk.ask(update(3, broker_epoch=25), 6, 2, "1")
    talk.ask(update(3, broker_epoch=26), 6, 3, "1")
    talk.ask(update(3, broker_epoch=24), 6, 4, "1")
    requests = [step.request for step in talk.recording().steps]
    rewrite = Rewriter([(request, 1) for request in requests], broker_epochs={1: 1, 2: 700})
    assert [rewrite(request).broker_epoch for request in requests] == [700, 1, 1, 0]  # -1 would be no epoch: rule 9.5
    rewrite.broker_epochs[1] = 900
    assert [rewrite(request).broker_epoch for request in requests] == [700, 900, 900, 898]


def test_differences_know_what_order_and_what_time_are_worth():
    one = {"throttle_time_ms": 1, "topics": [{"name": "a", "error_code": 0}, {"name": "b", "error_code": 3}]}
    other = {"throttle_time_ms": 2, "topics": [{"name": "b", "error_code": 5}, {"name": "a", "error_code": 0}]}
    assert differences(one, other) == [
        "topics[b].error_code: UNKNOWN_TOPIC_OR_PARTITION recorded, LEADER_NOT_AVAILABLE now"
    ]
    assert differences([1, 2], [1]) == [": [1, 2] recorded, [1] now"]
    assert differences({"a": 1}, {"b": 1}) == ["a: 1 recorded, None now", "b: None recorded, 1 now"]


def test_differences_name_topics_partitions_and_brokers():
    old = [{"topic_name": "a", "partition_index": number, "error_code": 0} for number in (2, 10)]
    new = [{"topic_name": "a", "partition_index": number, "error_code": error} for number, error in ((10, 11), (2, 0))]
    assert differences({"partition_errors": old}, {"partition_errors": new}) == [
        "partition_errors[a-10].error_code: NONE recorded, STALE_CONTROLLER_EPOCH now"
    ]
    old, new = ([{"topic_id": "an id", "partitions": [{"index": 3, "offset": n}]}] for n in (1, 2))
    assert differences(old, new, names={"an id": "orders"}) == ["[orders].partitions[3].offset: 1 recorded, 2 now"]
    assert differences(old, new) == ["[an id].partitions[3].offset: 1 recorded, 2 now"]
    assert differences([{"node_id": 1, "port": 1}], [{"node_id": 1, "port": 2}]) == ["[1].port: 1 recorded, 2 now"]


def test_of_arrays_only_what_one_of_them_lacks_is_different():
    old, new = ([{"name": name, "error_code": 0} for name in names] for names in (("a", "b"), ("c", "a", "b")))
    assert differences({"topics": old}, {"topics": new}) == [f"topics[c]: None recorded, {new[0]} now"]
    twice = [*new, new[0]]
    assert differences(old, twice) == [f": {old} recorded, {twice} now"]


def test_what_has_another_identity_has_its_place():
    assert differences([{"name": "a"}], [{"name": "b"}]) == ["[0].name: 'a' recorded, 'b' now"]
