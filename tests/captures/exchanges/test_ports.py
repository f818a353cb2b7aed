"""Ports that are given: `--ports`, and the data source's option of that name."""

from __future__ import annotations

import pytest

from kce.captures.exchanges.ports import listener_ports


def test_ports_and_what_they_are_for():
    assert listener_ports("9092") == {9092: ""}
    assert listener_ports("9091=control, 9092=data,9093") == {9091: "control", 9092: "data", 9093: ""}


@pytest.mark.parametrize("text", ["", "x", "9092,", "9092=", "9092=both", "=data", "-1", "9092;9093"])
def test_what_is_no_list_of_ports(text):
    with pytest.raises(ValueError, match="is no list of ports, such as 9092,9093 or 9091=control,9092=data"):
        listener_ports(text)


@pytest.mark.parametrize("text", ["0", "9092,65536", "99999999999=data"])
def test_ports_are_of_16_bits(text):
    with pytest.raises(ValueError, match="ports are from 1 to 65535"):
        listener_ports(text)
