"""Layouts as text and as JSON, and docs/wire.md."""

from __future__ import annotations

import json
import struct
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from kce import wire
from kce.harness.cli import cli
from kce.wire.descriptions import LayoutField, layout, markdown
from kce.wire.registry import API_KEYS
from tests.wire.frames import encode, header_bytes
from tests.wire.strategies import MESSAGE_IDS, MESSAGES

STOP_REPLICA_4 = """\
StopReplicaRequest 4 (API key 5, flexible)
  header 2: api_key int16, api_version int16, correlation_id int32, client_id nullable string, tagged fields
       0  controller_id           int32
       4  is_kraft_controller     bool
       5  controller_epoch        int32
       9  broker_epoch            int64
      17  topic_states            compact array of StopReplicaTopicState
      +0    topic_name            compact string
            partition_states      compact array of StopReplicaPartitionState
      +0      partition_index     int32
      +4      leader_epoch        int32
      +8      delete_partition    bool
              tagged fields
            tagged fields
          tagged fields
"""
CONTROLLED_SHUTDOWN_0 = """\
ControlledShutdownRequest 0 (API key 7)
  header 0: api_key int16, api_version int16, correlation_id int32
       0  broker_id  int32

ControlledShutdownResponse 0 (API key 7)
  header 0: correlation_id int32
       0  error_code            int16
       2  remaining_partitions  array of RemainingPartition
      +0    topic_name          string
            partition_index     int32
"""


def kce_schema(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(cli, ["schema", *arguments])
    return ran.exit_code, ran.output


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_layout_as_text() -> None:
    assert squeezed(wire.describe(5, 4, "request")) == squeezed(STOP_REPLICA_4)
    assert wire.describe(7, 0) == CONTROLLED_SHUTDOWN_0


def test_tagged_fields_show_tags() -> None:
    lines = squeezed(wire.describe(18, 3, "response"))
    assert lines[-1] == "zk_migration_ready tag 3: bool"
    assert "header 0: correlation_id int32" in lines  # rule B1.39


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_fixed_offsets_are_correct(cls: type[wire.Message], version: int) -> None:
    """A value put into the field comes out at its offset, in every message of every version."""
    forms = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q", "float64": ">d", "bool": ">?"}
    body = header_bytes(cls, version)
    for f in layout(cls, version):
        if f.offset is None:
            continue
        if f.type == "uuid":
            value, data = (identity := uuid.UUID(int=2**100 + 5)), identity.bytes
        elif f.type in forms:
            value = f.type == "bool" or 83
            data = struct.pack(forms[f.type], value)
        else:
            continue
        frame = encode(cls(**{f.name: value}), version)
        assert frame[body + f.offset : body + f.offset + len(data)] == data, f.name


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_layout_has_exactly_the_fields_of_the_version(cls: type[wire.Message], version: int) -> None:
    def expected(of: type[wire.Struct]) -> dict[str, object]:
        present = (f for f in of.__fields__ if version in f.versions)
        return {f.name: expected(f.type) if isinstance(f.type, type) else {} for f in present}

    def nested(fields: tuple[LayoutField, ...]) -> dict[str, object]:
        return {f.name: nested(f.fields) for f in fields}

    assert nested(layout(cls, version)) == expected(cls)
    text = wire.describe(cls.__api_key__, version, cls.__direction__)
    assert text.startswith(f"{cls.__name__} {version} (API key {cls.__api_key__}")


def test_apis_without_layout() -> None:
    with pytest.raises(wire.UnknownApiKey, match="no API has key 999"):
        wire.describe(999, 0)
    with pytest.raises(wire.UnsupportedVersion, match="Fetch has versions 0-17, not 18"):
        wire.describe(1, 18)
    with pytest.raises(wire.UnsupportedVersion, match="BrokerRegistration is for KRaft nodes only"):
        wire.describe(62, 0)


# docs/wire.md


def test_document_is_up_to_date() -> None:
    document = Path(__file__).parents[2] / "docs" / "wire.md"
    assert document.read_text() == markdown(), "run: make docs"


def test_document_has_every_api_and_field() -> None:
    text = markdown()
    for api in API_KEYS:
        assert (f"\n## {api.name}\n" in text) == api.zk_broker
    for line in (
        "| `topic_states[].partition_states[].leader_recovery_state` | int8 | 6+ |  |  |  |",
        "| `type` | int8 | 8+ |  |  | tag 0 in 8+ |",
        "| `broker_epoch` | int64 | 2+ |  | -1 | ignorable |",
    ):
        assert line in text


# kce schema


def test_kce_schema_prints_both_directions() -> None:
    code, out = kce_schema("ControlledShutdown", "0")
    assert (code, out) == (0, CONTROLLED_SHUTDOWN_0)
    assert kce_schema("controlledshutdownrequest", "0") == kce_schema("7", "0") == (code, out)


def test_kce_schema_defaults_to_newest_version() -> None:
    assert kce_schema("leaderandisr") == kce_schema("LeaderAndIsr", "7")


def test_kce_schema_as_json() -> None:
    code, out = kce_schema("StopReplica", "4", "--json")
    described = json.loads(out)
    assert code == 0
    assert {key: described[key] for key in ("api", "key", "version", "flexible")} == {
        "api": "StopReplica", "key": 5, "version": 4, "flexible": True,
    }  # fmt: skip
    assert described["request"]["fields"][1] == {
        "name": "is_kraft_controller", "type": "bool", "offset": 4, "default": False, "tag": None, "fields": [],
    }  # fmt: skip
    assert [f["name"] for f in described["request"]["fields"][-1]["fields"]] == ["topic_name", "partition_states"]
    assert (described["response"]["name"], described["response"]["header_version"]) == ("StopReplicaResponse", 1)


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_every_layout_is_json(cls: type[wire.Message], version: int) -> None:
    assert json.loads(json.dumps(wire.describe_json(cls.__api_key__, version)))["version"] == version


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["LeaderIsr"], "Kafka has no API 'LeaderIsr'; did you mean LeaderAndIsr"),
        (["LeaderAndIsr", "8"], "LeaderAndIsr has versions 0-7, not 8"),
        (["LeaderAndIsr", "-1"], "No such option"),
        (["999"], "Kafka has no API '999'"),
        (["BrokerRegistration"], "BrokerRegistration is for KRaft nodes only"),
        (["LeaderAndIsr", "new"], "'new' is not a valid integer"),
    ],
)
def test_kce_schema_rejects_unknown_api_and_version(arguments: list[str], error: str) -> None:
    code, out = kce_schema(*arguments)
    assert code == 2
    assert error in out
