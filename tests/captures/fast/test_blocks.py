"""Which connections a share has.

Covers: kce.captures.fast.block_kernels
"""

from __future__ import annotations

import numpy as np
import pytest

from kce.captures.fast.blocks import Block, Chosen, Flows, Shares
from kce.captures.files import packet_kernels as k


def block(connections: list[int]) -> Block:
    """Segments of 1000 bytes between the same two hosts; a connection is its client's port."""
    packets = np.zeros((len(connections), k.COLUMNS), np.int64)
    packets[:, k.KIND] = k.SEGMENT
    packets[:, k.SOURCE_LOW], packets[:, k.DESTINATION_LOW] = 0x7F000001, 0x7F000002
    packets[:, k.PORTS] = np.array(connections) << 16 | 9092
    packets[:, k.SIZE] = 1000
    return Block(np.zeros(0, np.uint8), packets)


def ports(share: Chosen, blocks: list[list[int]]) -> list[int]:
    kept = [share.of_block(block(of_it), Flows()).packets for of_it in blocks]
    return (np.concatenate(kept)[:, k.PORTS] >> 16).tolist()


@pytest.mark.parametrize("of", [2, 3, 7])
@pytest.mark.parametrize("connections", [21, 300])
def test_shares_are_about_equal(of: int, connections: int) -> None:
    blocks = [[40_000 + i for i in range(connections)] * 20 for _ in range(3)]
    shares = [ports(Chosen(number, of, shares=Shares(of)), blocks) for number in range(of)]
    assert sorted(port for share in shares for port in share) == sorted(port for one in blocks for port in one)
    found = [set(share) for share in shares]
    assert sum(map(len, found)) == connections  # each in one share
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_a_large_connection_has_a_share_for_itself() -> None:
    blocks = [[1] * 5000, [2, 3, 4, 5] * 10]
    assert set(ports(Chosen(0, 2, shares=Shares(2)), blocks)) == {1}


def test_more_connections_than_are_known() -> None:
    """What finds no place goes by its ends, in every share alike."""
    shares = [Shares(2) for _ in range(2)]
    for one in shares:
        one.known = np.full((64, 2), -1, np.int64)
    blocks = [list(range(1, 1000)) * 2]
    found = [ports(Chosen(number, 2, shares=shares[number]), blocks) for number in range(2)]
    assert sorted(found[0] + found[1]) == sorted(blocks[0])
    assert not set(found[0]) & set(found[1])
