"""One Spark for all tests of a session, and the findings of each sample, made once."""

from __future__ import annotations

import contextlib
import functools

import pytest

from tests.captures.samples import CAPTURES
from tests.tools import require


@pytest.fixture(scope="session")
def spark_of_session():
    require("java")
    from kce.captures.spark.session import local_session

    with local_session(brief=True) as session:
        yield session


@pytest.fixture(scope="session")
def sail_of_session():
    from kce.captures.spark.sail import sail_session

    with sail_session() as session:
        yield session


@pytest.fixture(scope="session")
def spark(spark_of_session):
    return spark_of_session


def pytest_collection_modifyitems(config, items):
    """Spark, whose planning takes seconds, runs the first case of each test that runs on both engines; Sail all."""
    seen, others = set(), []
    for item in items:
        cases = getattr(item, "callspec", None)
        if cases is not None and cases.params.get("engine") == "spark":
            test = item.path, item.function.__qualname__
            if test in seen:
                others.append(item)
            seen.add(test)
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture(params=["spark", "sail"])
def engine(request):
    """A session of either engine."""
    from kce.captures.spark.sail import connect_mode

    session = request.getfixturevalue(f"{request.param}_of_session")
    with connect_mode() if request.param == "sail" else contextlib.nullcontext():
        yield session


@pytest.fixture(scope="session")
def findings_of(spark):
    """name of a sample -> what is found in it."""
    from kce.captures.spark import analyze

    return functools.cache(lambda name: analyze([CAPTURES[name]], spark=spark, evidence=True))
