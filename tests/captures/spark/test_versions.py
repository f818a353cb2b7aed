"""An installation that cannot work says what is wrong with it."""

from __future__ import annotations

import pyspark
import pytest

from kce.captures.errors import CaptureError
from kce.captures.spark.session import local_session
from kce.captures.spark.versions import check_versions


def spark_home(folder, version):
    (folder / "jars").mkdir(exist_ok=True)
    (folder / "jars" / f"spark-core_2.13-{version}.jar").write_bytes(b"")
    return str(folder)


def test_this_installation_works(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    check_versions()
    monkeypatch.setenv("SPARK_HOME", spark_home(tmp_path, pyspark.__version__))
    check_versions()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "empty"))
    check_versions()


def test_another_spark_in_spark_home_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_HOME", spark_home(tmp_path, "3.5.1"))
    with pytest.raises(CaptureError, match=r"is Spark 3\.5, but pyspark is .*: unset SPARK_HOME"), local_session():
        pass


def test_an_old_pyspark_is_named(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(CaptureError, match=r"pyspark 3\.5\.1 is too old: kce needs Spark 4\.1 or later"):
        check_versions()
