"""`codegen.maker` makes the same structures as their constructors."""

from __future__ import annotations

import random

import pytest

from kce import wire
from tests.wire import seeded
from tests.wire.strategies import MESSAGES


@pytest.mark.parametrize("cls", {cls: None for cls, _ in MESSAGES}, ids=lambda cls: cls.__name__)
def test_maker_equals_constructor(cls: type[wire.Message]) -> None:
    make = wire.maker(cls)
    assert make() == cls()
    message = seeded.message(random.Random(cls.__name__), cls, cls.__versions__.last)
    fields = {f.name: getattr(message, f.name) for f in cls.__fields__}
    made = make(**fields)
    assert type(made) is cls
    assert made == cls(**fields) == message
    assert made.unknown_tagged_fields == ()
    assert hash(made) == hash(message)
    with pytest.raises(AttributeError):
        made.no_such_field  # noqa: B018
    with pytest.raises(TypeError):
        make(no_such_field=1)
