"""`kce schema`: the layout of a message in one version."""

from __future__ import annotations

import json

import click

from kce import wire
from kce.captures.exchanges import selection


@click.command(
    epilog="""\b
Examples:
  kce schema LeaderAndIsr 7
  kce schema 6                                        UpdateMetadata, in its newest version
  kce schema Fetch 12 --json | jq '.request.fields[].name'
"""
)
@click.argument("api")
@click.argument("version", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def schema(api: str, version: int | None, as_json: bool) -> None:
    """Print the layout of an API's request and response: each field, its type, and its offset if that is fixed.

    API is a name such as LeaderAndIsr, in any case, or an API key. The default VERSION is the newest.
    """
    try:
        key = selection.api_key(api)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="'API'") from None
    version = wire.api(key).versions.last if version is None else version
    try:
        text = (
            json.dumps(wire.describe_json(key, version), indent=2) if as_json else wire.describe(key, version).rstrip()
        )
    except wire.UnsupportedVersion as e:
        raise click.BadParameter(str(e), param_hint="'VERSION'") from None
    click.echo(text)
