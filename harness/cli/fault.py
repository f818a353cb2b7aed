"""`kce fault add | list | remove`: rules for the frames of the running cluster."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kce.harness.cli.options import cluster_option
from kce.harness.errors import HarnessError
from kce.harness.faults import Rule
from kce.harness.links import Selection
from kce.harness.running import command, find_cluster

#: fields that have no option: functions, and what is an option of its own
_WITHOUT_OPTION = ("where", "change", "is_request", "api")
_NUMBERS = {"delay": float, "jitter": float, "bandwidth": float, "probability": float, "slow_close": float}
_TEXTS = ("listener", "client_id", "topic", "controller_epoch", "broker_epoch", "error")


@click.group()
def fault() -> None:
    """Delay, drop, change or answer requests in the running cluster or proxy; break connections.

    A fault is a rule: it selects frames, and acts on them until it is removed. Options are the fields of `kce.Rule`.
    """


def _descriptions() -> dict[str, str]:
    """What the docstrings of a rule and its selection say of each field: a line, and more lines that are indented."""
    text = "\n".join(inspect.getdoc(described) or "" for described in (Selection, Rule))
    entries = re.findall(r"^(\w+) {2,}(\S.*(?:\n {10,}\S.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}


def _help(name: str, descriptions: dict[str, str]) -> str:
    text = descriptions.get(name, "")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _rule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each field of a rule."""
    descriptions = _descriptions()
    for field in reversed(dataclasses.fields(Rule)):
        if not field.init or field.name in _WITHOUT_OPTION:
            continue
        name = f"--{field.name.replace('_', '-')}"
        text = _help(field.name, descriptions)
        if field.default is False:
            function = click.option(name, field.name, is_flag=True, default=None, help=text)(function)
        else:
            kind: Any = str if field.name in _TEXTS else _NUMBERS.get(field.name, int)
            function = click.option(name, field.name, type=kind, default=None, help=text)(function)
    return function


@fault.command(
    epilog="""\b
Examples:
  kce fault add --api LeaderAndIsr --to 2 --nth 3 --delay 5
  kce fault add --api AlterPartition --error NOT_CONTROLLER --every 2
  kce fault add --api LeaderAndIsr --source 1 --change controller_epoch=0
  kce fault add --responses --to 3 --drop
"""
)
@click.option("--api", "apis", multiple=True, metavar="NAME", help="Only this API; may be repeated.")
@click.option("--responses", is_flag=True, help="Act on responses instead of requests.")
@click.option("--change", "changes", multiple=True, metavar="FIELD=JSON", help="Replace a field; may be repeated.")
@_rule_options
@cluster_option
def add(
    apis: tuple[str, ...], responses: bool, changes: tuple[str, ...], cluster_file: Path | None, **fields: Any
) -> int:
    """Add a rule to the running cluster, and print its number."""
    rule = {name: _number_or_name(name, value) for name, value in fields.items() if value is not None}
    if apis:
        rule["api"] = list(apis)
    if responses:
        rule["is_request"] = False
    if changes:
        rule["change"] = dict(map(_change, changes))
    try:
        Rule.from_json(rule)
    except HarnessError as e:
        raise click.UsageError(str(e)) from e
    click.echo(command(find_cluster(cluster_file, or_proxy=True), "fault add", rule=rule)["text"])
    return 0


def _number_or_name(name: str, value: Any) -> Any:
    """An epoch or an error may be both."""
    is_number = name in ("controller_epoch", "broker_epoch", "error") and re.fullmatch(r"-?\d{1,19}", value)
    return int(value) if is_number else value


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if equals:
            return name, json.loads(value)
    except ValueError:
        pass
    raise click.UsageError(f"--change {text}: not FIELD=JSON, as in controller_epoch=0")


@fault.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_option
def list_faults(as_json: bool, cluster_file: Path | None) -> int:
    """List the rules of the running cluster."""
    faults = command(find_cluster(cluster_file, or_proxy=True), "fault list")["faults"]
    if as_json:
        click.echo(json.dumps(faults, indent=2))
        return 0
    for number, rule in faults.items():
        click.echo(f"{number}  {Rule.from_json(rule).describe()}")
    return 0


@fault.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_option
def stats(as_json: bool, cluster_file: Path | None) -> int:
    """Print how many frames each rule has matched, and on how many it has acted."""
    faults = command(find_cluster(cluster_file, or_proxy=True), "fault stats")["faults"]
    if as_json:
        click.echo(json.dumps(faults, indent=2))
        return 0
    for number, found in faults.items():
        click.echo(f"{number}  matched {found['matched']}, acted on {found['fired']}: {found['rule']}")
    return 0


@fault.command()
@click.argument("number", type=int)
@cluster_option
def remove(number: int, cluster_file: Path | None) -> int:
    """Remove a rule, and print how often it matched and acted. Frames that it holds go on."""
    click.echo(command(find_cluster(cluster_file, or_proxy=True), "fault remove", number=number)["text"])
    return 0
