"""Options that several commands share."""

from __future__ import annotations

import logging

import click
import pytest
from click.testing import CliRunner

from kce.captures.exchanges.ports import Ports
from kce.harness.cli.options import connected_store, port_list, ports_option, properties
from kce.harness.embedded_zookeeper import free_port
from kce.harness.errors import HarnessError


def test_properties_are_split_at_the_first_equals_sign() -> None:
    assert properties(["num.io.threads=4", " a = b=c "]) == {"num.io.threads": "4", "a": "b=c"}


@pytest.mark.parametrize("setting", ["nonsense", "=4", " =4"])
def test_a_property_without_key_or_value_is_a_usage_error(setting: str) -> None:
    with pytest.raises(click.UsageError, match=f"--set {setting}: "):
        properties([setting])


@click.command()
@click.option("--only", callback=port_list)
@ports_option
def command(only: list[int], ports: Ports) -> None:
    click.echo(f"{only} {ports}")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, list(arguments))
    return result.exit_code, result.output


def test_lists_of_ports() -> None:
    assert run("--only", "9092,9093")[1].startswith("[9092, 9093] ")
    assert run()[1].startswith("[] ")
    code, shown = run("--ports", "9092=data,9093=control")
    assert (code, "9093" in shown) == (0, True)


@pytest.mark.parametrize("ports", ["x", "9092,", "0", "65536", "9092 9093"])
def test_bad_ports_are_named(ports: str) -> None:
    code, shown = run("--only", ports)
    assert code == 2
    assert f"'{ports}'" in shown


def test_a_bad_plane_is_a_usage_error() -> None:
    code, shown = run("--ports", "9092=nonsense")
    assert code == 2
    assert "nonsense" in shown


async def test_an_unreachable_zookeeper_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kce.harness.cli.options.CONNECTION_TIMEOUT_MS", 200)
    port = free_port()
    with pytest.raises(HarnessError, match=f"^no ZooKeeper answers at 127.0.0.1:{port}"):
        async with connected_store(f"127.0.0.1:{port}", None):
            pass
    assert logging.getLogger("kazoo").level == logging.CRITICAL
