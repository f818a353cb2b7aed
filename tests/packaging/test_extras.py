"""The core without the extras does everything but bulk reading and Spark.

Covers: kce/__init__.py, kce/extras.py.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import kce
from kce.extras import EXTRA_OF, SPARK, MissingExtra, require
from kce.harness.cli import main
from tests.captures.samples import CAPTURES

ROOT = Path(__file__).parents[2]
TOUR = str(CAPTURES["kafka-3.9.1-tour"])

#: modules, and packages with all their modules, that need the extra `spark`
NEEDS_SPARK = (
    "kce.captures.fast",
    "kce.captures.files.index",
    "kce.captures.files.machine_code",
    "kce.captures.files.packet_kernels",
    "kce.captures.spark",
    "kce.captures.tables.rows",
    "kce.captures.tables.tabulate",
    "kce.captures.tcp.segment_kernels",
    "kce.controller.vectorised",
    "kce.wire.columnar",
    "kce.wire.columnar_kernels",
    "kce.wire.columnar_memory",
    "kce.wire.columnar_write_kernels",
)

#: run by a Python in which the modules of the extra `spark` cannot be imported
WITHOUT_SPARK = f"import sys\nsys.modules.update(dict.fromkeys({SPARK!r}))\n"


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in SPARK:
        monkeypatch.setitem(sys.modules, module, None)


def modules() -> list[str]:
    """Every module of kce but those that run when they are imported."""
    walked = pkgutil.walk_packages(kce.__path__, "kce.", onerror=lambda name: None)
    return [module.name for module in walked if not module.name.endswith("__main__")]


def needs_spark(module: str) -> bool:
    return any(module == needing or module.startswith(needing + ".") for needing in NEEDS_SPARK)


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_extras_agree_with_pyproject() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {
        (Requirement(line).name.replace("-", "_"), extra)
        for extra in ("pkcs12", "pytest", "spark")
        for line in declared[extra]
    }
    assert brought - {("pytest", "pytest")} == set(EXTRA_OF.items())
    assert declared["all"] == ["kafka-controller-emulator[pkcs12,pytest,spark]"]


def test_only_the_listed_modules_need_the_spark_extra() -> None:
    code = WITHOUT_SPARK + (
        "import importlib\n"
        f"for name in {modules()!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError:\n"
        "        print(name)\n"
    )
    assert python(code).split() == [name for name in modules() if needs_spark(name)]


def test_importing_kce_imports_nothing_else_and_is_fast() -> None:
    code = (
        "import sys, time\n"
        "begin = time.process_time()\n"
        "import kce\n"
        "print((time.process_time() - begin) * 1000)\n"
        "print(*(name for name in sys.modules if name.startswith('kce')))\n"
    )
    runs = [python(code).split("\n") for _ in range(3)]
    assert runs[0][1] == "kce"
    assert min(float(run[0]) for run in runs) < 20


def test_every_public_name_resolves() -> None:
    for name in kce.__all__:
        assert getattr(kce, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        kce.Nothing  # noqa: B018


def test_decode_prints_the_same_without_the_spark_extra() -> None:
    code = f"from kce.harness.cli import main\nmain(['decode', '--json', {TOUR!r}])"
    lines = python(WITHOUT_SPARK + code)
    assert len(lines) > 10_000
    assert lines == python(code)


@pytest.mark.parametrize(
    ("arguments", "purpose"),
    [
        (["analyze", TOUR], "`kce analyze` needs jinja2"),
        (["demo"], "`kce demo` needs jinja2"),
        (["up"], "an embedded ZooKeeper needs pyspark"),
        (["decode", "s3://bucket/incident.pcapng"], "reading s3://bucket/incident.pcapng needs pyarrow"),
    ],
)
@pytest.mark.usefixtures("without_spark")
def test_a_command_says_which_line_installs_its_extra(
    arguments: list[str], purpose: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert not out
    assert err == f"kce: {purpose}: pip install 'kafka-controller-emulator[spark]'\n"


@pytest.mark.usefixtures("without_spark")
def test_zstd_says_which_line_installs_its_extra(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "capture.pcap.zst"
    packed.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(60))
    assert main(["decode", str(packed)]) == 2
    assert "reading zstd needs pyarrow: pip install" in capfd.readouterr().err


@pytest.mark.usefixtures("without_spark")
def test_columns_say_which_line_installs_their_extra() -> None:
    for call in (lambda: kce.wire.columns(4, 7, []), lambda: kce.wire.from_columns(4, 7, {})):
        with pytest.raises(MissingExtra, match=r"needs numpy: pip install 'kafka-controller-emulator\[spark\]'"):
            call()


def test_require_passes_what_is_installed() -> None:
    require(*EXTRA_OF, purpose="this test")
