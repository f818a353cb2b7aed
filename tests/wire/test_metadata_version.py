"""Names and order of inter-broker protocol versions, and their request versions."""

from __future__ import annotations

import pytest

from kce.wire.metadata_version import MetadataVersion


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("3.9", "3.9-IV0"), ("3.9-IV0", "3.9-IV0"), ("3.9.1", "3.9-IV0"), ("2.4", "2.4-IV1"), ("2.4-IV0", "2.4-IV0"),
        ("0.10.2", "0.10.2-IV0"), ("0.10.0", "0.10.0-IV1"), ("0.10.0-IV0", "0.10.0-IV0"), ("0.9.0", "0.9.0"),
        ("0.9.0.1", "0.9.0"), ("0.8.2", "0.8.2"), ("3.7", "3.7-IV4"),
    ],
)  # fmt: skip
def test_versions_by_name(text: str, name: str) -> None:
    assert str(MetadataVersion.parse(text)) == name


@pytest.mark.parametrize("text", ["", "3", "3.10", "4.0", "2.4-IV2", "0.9.0-IV0", "latest", "0.10", "-"])
def test_invalid_versions_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a version from 0\.8\.0 to 3\.9-IV0"):
        MetadataVersion.parse(text)


def test_versions_are_ordered_by_age() -> None:
    names = ["0.8.2", "0.9.0", "0.10.0-IV1", "0.10.2", "0.11.0", "1.0", "2.2-IV0", "2.2-IV1", "2.8", "3.0-IV0", "3.9"]
    versions = [MetadataVersion.parse(name) for name in names]
    assert versions == sorted(versions)
    assert len(set(versions)) == len(versions)


def test_request_versions_at_every_boundary() -> None:  # rule 8.19
    table = {
        "3.9": (7, 8, 4, 3), "3.4-IV0": (7, 8, 4, 3), "3.3-IV3": (6, 7, 3, 3), "3.2-IV0": (6, 7, 3, 3),
        "3.1-IV0": (5, 7, 3, 3), "2.8-IV1": (5, 7, 3, 3), "2.8-IV0": (4, 6, 3, 3), "2.6-IV0": (4, 6, 3, 3),
        "2.5-IV0": (4, 6, 2, 3), "2.4-IV1": (4, 6, 2, 3), "2.4-IV0": (3, 5, 1, 2), "2.3-IV1": (2, 5, 1, 2),
        "2.2-IV0": (2, 5, 1, 2), "2.1-IV2": (1, 4, 0, 1), "1.0-IV0": (1, 4, 0, 1), "0.11.0-IV2": (0, 3, 0, 1),
        "0.10.2-IV0": (0, 3, 0, 1), "0.10.1-IV2": (0, 2, 0, 1), "0.10.0-IV1": (0, 2, 0, 1), "0.10.0-IV0": (0, 1, 0, 1),
        "0.9.0": (0, 1, 0, 1), "0.8.2": (0, 0, 0, 0),
    }  # fmt: skip
    for name, versions in table.items():
        v = MetadataVersion.parse(name)
        assert (
            v.leader_and_isr_version,
            v.update_metadata_version,
            v.stop_replica_version,
            v.controlled_shutdown_version,
        ) == versions, name
