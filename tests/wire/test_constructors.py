"""Structures are made by their fields as keywords, and do not change afterwards. Covers: wire/schema.py."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random

import pytest

from kce import wire
from kce.wire.codec import codec_for
from tests.wire import seeded
from tests.wire.strategies import MESSAGES


@pytest.mark.parametrize("cls", {cls: None for cls, _ in MESSAGES}, ids=lambda cls: cls.__name__)
def test_constructor(cls: type[wire.Message]) -> None:
    given = seeded.message(random.Random(cls.__name__), cls, cls.__versions__.last)
    fields = {f.name: getattr(given, f.name) for f in cls.__fields__}
    made = cls(**fields)
    assert type(made) is cls
    assert {f.name: getattr(made, f.name) for f in cls.__fields__} == fields
    assert {f.name: getattr(cls(), f.name) for f in cls.__fields__} == {f.name: f.default for f in cls.__fields__}
    assert made.unknown_tagged_fields == ()
    assert made == given == copy.copy(made) == pickle.loads(pickle.dumps(made)) == dataclasses.replace(made)
    assert hash(made) == hash(given)
    for name in fields:
        with pytest.raises(AttributeError):
            setattr(made, name, None)
        with pytest.raises(AttributeError):
            delattr(made, name)
        assert f"{name}={fields[name]!r}" in repr(made)
        if fields[name] is not None:
            assert made != dataclasses.replace(made, **{name: None})
    assert made != cls.__name__
    with pytest.raises(TypeError):
        cls(no_such_field=1)
    with pytest.raises(TypeError):
        cls(1)


def test_what_is_decoded_equals_what_is_made() -> None:
    made = wire.HeartbeatResponse(throttle_time_ms=7, error_code=27)
    codec, pieces = codec_for(wire.HeartbeatResponse, 3, False), list[bytes]()
    codec.encode(made, pieces.append)
    assert codec.decode(b"".join(pieces), 0) == (made, 6)


def test_a_copy_keeps_tagged_fields_that_the_definition_does_not_have() -> None:
    codec = codec_for(wire.HeartbeatResponse, 4, True)
    tagged = b"\x01\x05\x02hi"
    decoded, _ = codec.decode(b"\0\0\0\7\0\x1b" + tagged, 0)
    for copied in (copy.copy(decoded), pickle.loads(pickle.dumps(decoded))):
        assert copied == decoded
        pieces = list[bytes]()
        codec.encode(copied, pieces.append)
        assert b"".join(pieces).endswith(tagged)
