"""The times and errors of one request (rule B1.33).

Covers: broker_stub/reactor/metrics.py.
"""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.reactor.metrics import ApiMetrics, RequestMetrics
from kce.wire import ErrorCode
from tests.broker_stub.support import Node

#: when it arrives, a handler takes it, returns, it is answered, and the response is dequeued and sent
ARRIVED, TAKEN, RETURNED, ANSWERED, DEQUEUED, SENT = 1, 3, 7, 15, 31, 63


def transactions(*verify_only: bool) -> wire.AddPartitionsToTxnRequest:
    found = (
        wire.AddPartitionsToTxnTransaction(transactional_id=str(i), verify_only=v) for i, v in enumerate(verify_only)
    )
    return wire.AddPartitionsToTxnRequest(transactions=tuple(found))


#: a version of Fetch (KIP-896)
DEPRECATED = 3


@pytest.mark.parametrize(
    ("returned", "local", "remote"),
    [
        (RETURNED, RETURNED - TAKEN, ANSWERED - RETURNED),
        (ANSWERED + 1, ANSWERED - TAKEN, 0),
        (None, ANSWERED - TAKEN, 0),
    ],
    ids=["parked", "answered in its handler", "not returned yet"],
)
async def test_where_its_time_went(
    returned: float | None, local: float, remote: float, autojump_clock: MockClock
) -> None:
    await trio.sleep(ARRIVED)
    request, _ = Node().request(wire.ApiVersionsRequest(), 3)
    steps = {TAKEN: request.dequeued, ANSWERED: lambda: request.respond(wire.ApiVersionsResponse(error_code=35))}
    if returned is not None:
        steps[returned] = lambda: setattr(request, "handled_at", trio.current_time())
    for time, step in sorted(steps.items()):
        await trio.sleep_until(time)
        step()
    metrics = RequestMetrics()
    for _ in range(2):
        request.record(metrics, dequeued_at=DEQUEUED, sent_at=SENT)
    found = metrics.of("ApiVersions")
    assert metrics.apis == {"ApiVersions": found}
    assert found == ApiMetrics(
        requests=2,
        request_queue_time=2 * (TAKEN - ARRIVED),
        local_time=2 * local,
        remote_time=2 * remote,
        response_queue_time=2 * (DEQUEUED - ANSWERED),
        response_send_time=2 * (SENT - DEQUEUED),
        versions=Counter({3: 2}),
        errors={ErrorCode.UNSUPPORTED_VERSION: 2},  # type: ignore[arg-type]
    )
    assert found.total_time == 2 * (SENT - ARRIVED)


@pytest.mark.parametrize(
    ("message", "version", "counted"),
    [
        (wire.FetchRequest(), DEPRECATED, {"Fetch", "FetchConsumer"}),
        (wire.FetchRequest(), 11, {"Fetch", "FetchConsumer"}),
        (wire.FetchRequest(replica_id=2), 11, {"Fetch", "FetchFollower"}),
        (wire.FetchRequest(), 16, {"Fetch", "FetchConsumer"}),
        (wire.FetchRequest(replica_state=wire.ReplicaState(replica_id=2)), 16, {"Fetch", "FetchFollower"}),
        (wire.AddPartitionsToTxnRequest(), 3, {"AddPartitionsToTxn"}),
        (transactions(True, True), 5, {"AddPartitionsToTxnVerification"}),
        (transactions(True, False), 5, {"AddPartitionsToTxn"}),
        (wire.HeartbeatRequest(), 4, {"Heartbeat"}),
    ],
)
async def test_the_kind_of_request_that_it_counts_for(message: wire.Message, version: int, counted: set[str]) -> None:
    """Rule B1.33."""
    request, _ = Node().request(message, version)
    if isinstance(message, wire.FetchRequest):
        for _ in request.drop_message():
            pass
    metrics = RequestMetrics()
    request.respond_payload(b"", {35: 1})
    request.record(metrics, dequeued_at=DEQUEUED, sent_at=SENT)
    assert {name for name, of in metrics.apis.items() if of.requests} == counted
    assert metrics.of(wire.api(message.__api_key__).name).errors == {35: 1}
    is_deprecated = isinstance(message, wire.FetchRequest) and version <= DEPRECATED
    assert {name for name, of in metrics.apis.items() if of.deprecated} == (counted if is_deprecated else set())
    for name in counted:
        assert dict(metrics.of(name).histograms())["TotalTimeMs"].count == 1


async def test_it_is_answered_once() -> None:
    request, captured = Node().request(wire.ApiVersionsRequest(), 3)
    request.fail(ValueError("what?"))
    request.fail(ValueError("and what else?"))
    assert captured.response is not None
    for answer in (request.no_response, request.close_connection, lambda: request.respond(wire.ApiVersionsResponse())):
        with pytest.raises(RuntimeError, match="<ApiVersions 3, correlation id 5, connection> is answered already"):
            answer()
