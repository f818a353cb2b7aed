"""Producer ids for idempotent producers, from blocks (rules B3.57-B3.59).

The controller allocates the blocks; with an inter-broker protocol below 3.0, the broker does it in ZooKeeper.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from kce import wire
from kce.broker_stub.alter_partition_manager import ControllerChannel
from kce.wire import AllocateProducerIdsRequest, AllocateProducerIdsResponse, ErrorCode

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.05
_LAST_ID: Final = 2**63 - 1
_API_KEY, (_, _LAST_VERSION) = AllocateProducerIdsRequest.__api_key__, AllocateProducerIdsRequest.__versions__


#: a new block; None if it was refused and is to be asked for again. Raises wire.UnsupportedVersion.
Allocate = Callable[[], Awaitable[range | None]]


class ProducerIdManager:
    """Owns the rest of the current block. No broker, before or after a restart, hands out an id twice."""

    def __init__(self, allocate: Allocate, spawn: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._allocate = allocate
        self._spawn = spawn
        self._block = iter(range(0))
        self._is_requesting = False

    def next_id(self) -> int | None:
        """The next producer id; None while a request for a new block is in flight."""
        next_id = next(self._block, None)
        if next_id is None:
            self.request_block()
        return next_id

    def request_block(self) -> None:
        """Ask for a new block, if that is not under way."""
        if not self._is_requesting:
            self._is_requesting = True
            self._spawn(self._request)

    async def _request(self) -> None:
        try:
            await self._allocate_block()
        except wire.UnsupportedVersion as e:  # a controller before Kafka 3.0; the next producer retries
            log.warning("no producer ids: %s", e)
        finally:
            self._is_requesting = False

    async def _allocate_block(self) -> None:
        while True:
            block = await self._allocate()
            if block is not None:
                self._block = iter(block)
                return
            await trio.sleep(RETRY_SECONDS)


class ControllerProducerIds:
    """Blocks from the controller. ``broker_epoch`` is the current one."""

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], channel: ControllerChannel) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._channel = channel

    async def allocate(self) -> range | None:
        """None if the controller refused, say because it does not know the broker epoch yet, or gave no valid block."""

        def build(version: int) -> AllocateProducerIdsRequest:
            return AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())

        response = await self._channel.request(_API_KEY, _LAST_VERSION, build, _error_codes)
        assert isinstance(response, AllocateProducerIdsResponse)
        if response.error_code != ErrorCode.NONE:
            log.warning("AllocateProducerIds was refused: %s", wire.error_name(response.error_code))
            return None
        start, length = response.producer_id_start, response.producer_id_len
        if start < 0 or length <= 0 or start + length - 1 > _LAST_ID:
            log.warning("the controller allocated %d producer ids from %d on, which cannot be", length, start)
            return None
        return range(start, start + length)


def _error_codes(response: wire.Message) -> Iterable[int]:
    assert isinstance(response, AllocateProducerIdsResponse)
    return (response.error_code,)
