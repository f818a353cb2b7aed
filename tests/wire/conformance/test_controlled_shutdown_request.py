"""CSREQ: ControlledShutdown requests (section 14 of docs/controller-semantics.md; rules of section 13f)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.wire import ErrorCode
from tests.wire.conformance.support import assert_unsupported, error_response


@pytest.mark.kafka("CSREQ-1")
def test_unsupported_version_of_controlled_shutdown() -> None:
    assert_unsupported(wire.ControlledShutdownRequest())


@pytest.mark.kafka("CSREQ-2")
@pytest.mark.parametrize("version", range(4))
def test_error_response_to_controlled_shutdown(version: int) -> None:  # rule 9.4
    answer = error_response(
        wire.ControlledShutdownRequest(broker_id=1), version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    )
    assert answer == wire.ControlledShutdownResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
