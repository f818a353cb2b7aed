"""Local paths, globs and URIs."""

from __future__ import annotations

import pytest

from kce.captures.errors import CaptureError
from kce.captures.files.locations import check_location, expand, location_bytes, open_location
from kce.captures.files.pcap import CaptureFile
from tests.captures.made_files import START_NS, pcap


@pytest.fixture
def folder(tmp_path):
    for name in ("b.pcap", "a.pcap", "deep/er/c.pcap", "with space.pcapng", "odd[1].pcap", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pcap([(START_NS, name.encode())]))
    return tmp_path


def test_what_is_no_glob_stays_as_it_is():
    names = ["a", "-", "s3://bucket/a.pcap", "a"]
    assert expand(names) == ["a", "-", "s3://bucket/a.pcap"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_globs(folder, scheme):
    def found(pattern):
        return [name.removeprefix(f"{scheme}{folder}/") for name in expand([f"{scheme}{folder}/{pattern}"])]

    space = "with%20space.pcapng" if scheme else "with space.pcapng"
    assert found("[ab].pcap") == ["a.pcap", "b.pcap"]
    assert found("**/c.pcap") == ["deep/er/c.pcap"]
    assert found("deep/*/*.pcap") == ["deep/er/c.pcap"]
    assert found("*.pcapng") == [space]
    with pytest.raises(CaptureError, match=r"none\*: no file matches"):
        found("none*")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_a_glob_finds_can_be_read(folder, scheme):
    for name in expand([f"{scheme}{folder}/**/*.pcap*"]):
        check_location(name)
        assert location_bytes(name) > 40
        with CaptureFile(name) as capture:
            assert capture.progress[1] == location_bytes(name)
            (packet,) = capture
            assert packet.data.decode().split("/")[-1][0] == name.split("/")[-1][0]


def test_a_name_that_looks_like_a_glob_and_is_there(folder):
    assert expand([folder / "odd[1].pcap"]) == [str(folder / "odd[1].pcap")]


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("{}/no.pcap", "there is no such file"),
        ("{}", "a directory, not a capture"),
        ("file://{}/no.pcap", "there is no such file"),
        ("file://{}/deep", "a directory, not a capture"),
        ("nosuchscheme://x/y.pcap", "nosuchscheme"),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path, location, error):
    (tmp_path / "deep").mkdir()
    location = location.format(tmp_path)
    for attempt in (check_location, lambda name: open_location(name, name), CaptureFile):
        with pytest.raises(CaptureError, match=error) as caught:
            attempt(location)
        assert location in str(caught.value)
    assert location_bytes(tmp_path / "no.pcap") == 0
