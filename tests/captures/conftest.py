"""One Spark for all tests of a session, and the findings of each sample, made once."""

from __future__ import annotations

import functools

import pytest

from tests.captures.samples import CAPTURES
from tests.tools import require


@pytest.fixture(scope="session")
def spark():
    require("java")
    from kce.captures.spark.session import local_session

    with local_session(brief=True) as session:
        yield session


@pytest.fixture(scope="session")
def findings_of(spark):
    """name of a sample -> what is found in it."""
    from kce.captures.spark import analyze

    return functools.cache(lambda name: analyze([CAPTURES[name]], spark=spark, evidence=True))
