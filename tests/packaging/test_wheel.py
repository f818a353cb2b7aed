"""The wheel in a fresh environment: its size, its commands, and a user's project with folders of our rooms' names."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.captures.samples import CAPTURES

ROOT = Path(__file__).parents[2]
ROOMS = ("wire", "zookeeper", "controller", "broker_stub", "election", "captures", "harness")
MAX_CORE_BYTES = 80_000_000

pytestmark = pytest.mark.slow

OWN_TESTS = """\
import {room}
from {room} import rules


def test_imports_are_ours():
    assert {room}.__file__.startswith({project!r})
    assert rules.ROOM == "{room}"
"""

#: what a project tests: the plugin is there, and kce beside folders of the same names
PLUGIN_TESTS = """\
import kce
import wire


def test_plugin_is_loaded(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("kafka_cluster")
    assert any(line.startswith("kafka_cluster(") for line in pytestconfig.getini("markers"))


def test_kce_is_apart():
    assert kce.wire is not wire
    request = kce.wire.LeaderAndIsrRequest(controller_id=1)
    frame = kce.wire.encode_request(request, api_version=7, correlation_id=1, client_id="c")
    assert kce.wire.decode_request(frame)[1] == request
"""
README_TESTS = (ROOT / "README.md").read_text().partition("## In a test\n\n```python\n")[2].partition("```")[0]
CLUSTER_TEST = """\
async def test_cluster(kafka_cluster):
    pass
"""


def run(*command: str | Path, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=timeout)


def succeed(*command: str | Path, cwd: Path, timeout: float = 300) -> str:
    done = run(*command, cwd=cwd, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def build(target: str, source: Path, folder: Path) -> Path:
    succeed(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)
    (built,) = folder.iterdir()
    return built


def installed_files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """(bin folder, bytes added) of a fresh environment with the wheel and the extra pytest, in the lock's versions."""
    folder = tmp_path_factory.mktemp("core")
    succeed(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    bare = size(folder / "venv")
    pins = [
        line.removesuffix(" \\") for line in (ROOT / "requirements.lock").read_text().splitlines() if line[:1] > "#"
    ]
    (folder / "constraints.txt").write_text("\n".join(pins))
    pip = (folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = run(*pip, "--constraint", folder / "constraints.txt", f"{wheel}[pytest]", cwd=folder, timeout=600)
    if done.returncode and not os.environ.get("KCE_REQUIRE_TOOLS"):
        pytest.skip(f"pip cannot install the wheel, which is NOT checked: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder / "venv" / "bin", size(folder / "venv") - bare


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project that has packages of its own with our rooms' names, and tests in them."""
    for room in ROOMS:
        folder = tmp_path / room
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "rules.py").write_text(f'ROOM = "{room}"\n')
        (folder / f"test_{room}.py").write_text(OWN_TESTS.format(room=room, project=str(tmp_path)))
    (tmp_path / "test_with_plugin.py").write_text(PLUGIN_TESTS)
    return tmp_path


def test_wheel_holds_one_package_with_types_and_no_samples(wheel: Path) -> None:
    files = installed_files(wheel)
    assert {name.split("/")[0] for name in files} == {"kce", "pyspark_kafka_capture"}
    tracked = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = {f"kce/{name}" for name in tracked.splitlines() if not name.startswith("captures/samples/")}
    assert modules <= files
    assert "kce/py.typed" in files
    assert not [name for name in files if "samples/" in name or "tests/" in name]


def test_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(tmp_path)
    rebuilt = build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "rebuilt")
    assert installed_files(rebuilt) == installed_files(wheel)


def test_core_is_small(core: tuple[Path, int]) -> None:
    _, added = core
    assert added <= MAX_CORE_BYTES


def test_users_folders_with_our_names_stay_theirs(core: tuple[Path, int], project: Path) -> None:
    bin_folder, _ = core
    out = succeed(bin_folder / "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert f"{len(ROOMS) + 2} passed" in out
    for room in ROOMS:
        code = f"import {room}.rules; print({room}.rules.ROOM)"
        assert succeed(bin_folder / "python", "-c", code, cwd=project).strip() == room
        code = f"import importlib.util; print(importlib.util.find_spec({room!r}))"
        assert succeed(bin_folder / "python", "-c", code, cwd=project.parent).strip() == "None"


def test_fixture_names_the_extra_that_it_needs(core: tuple[Path, int], tmp_path: Path) -> None:
    (tmp_path / "test_cluster.py").write_text(CLUSTER_TEST)
    done = run(core[0] / "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 1
    assert "an embedded ZooKeeper needs pyspark: pip install 'kafka-controller-emulator[spark]'" in done.stdout


def test_the_tests_of_the_readme_run_in_memory(core: tuple[Path, int], tmp_path: Path) -> None:
    """Only the wheel and pytest are installed."""
    (tmp_path / "test_readme.py").write_text(README_TESTS)
    out = succeed(core[0] / "pytest", "-q", "-p", "no:cacheprovider", "--kafka-world=memory", cwd=tmp_path)
    assert "3 passed" in out


def test_commands_of_the_core_run(core: tuple[Path, int], tmp_path: Path) -> None:
    kce = core[0] / "kce"
    assert "LeaderAndIsrRequest 7" in succeed(kce, "schema", "LeaderAndIsr", "7", cwd=tmp_path)
    tour = CAPTURES["kafka-3.9.1-tour"]
    ours = succeed(sys.executable, "-m", "kce.harness", "decode", "--json", tour, cwd=tmp_path)
    assert succeed(kce, "decode", "--json", tour, cwd=tmp_path) == ours
    for command in (("analyze", str(tour)), ("demo",), ("up",)):
        done = run(kce, *command, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.endswith("pip install 'kafka-controller-emulator[spark]'\n")
        assert done.stderr.count("\n") == 1


def test_cluster_of_the_core_runs_on_a_given_zookeeper(
    core: tuple[Path, int], zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    kce = core[0] / "kce"
    ready, record = tmp_path / "ready.json", tmp_path / "traffic.pcapng"
    up = subprocess.Popen(
        [kce, "up", "--zookeeper", f"{zookeeper}/wheel", "--ready-file", ready, "--record", record],
        stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        for line in up.stdout:
            if "Ctrl-C stops the cluster" in line:
                break
        assert json.loads(ready.read_text())["zookeeper"] == f"{zookeeper}/wheel"
        succeed(kce, "topic", "create", "orders", "--partitions", "2", "--replication-factor", "3", cwd=tmp_path)
        assert "orders" in succeed(kce, "describe", cwd=tmp_path)
        succeed(kce, "kill", "2", cwd=tmp_path)
        assert "orders" in succeed(kce, "topic", "list", cwd=tmp_path)
    finally:
        up.send_signal(signal.SIGINT)
        out, _ = up.communicate(timeout=60)
    assert up.returncode in (0, 130), out
    assert "LeaderAndIsr" in succeed(kce, "decode", record, "--api", "LeaderAndIsr", cwd=tmp_path)


@pytest.mark.parametrize("how", ["clone", "archive"])
def test_copies_of_the_repository_keep_the_links(how: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    if how == "clone":
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), copy], check=True)
    else:
        copy.mkdir()
        tar = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", copy], input=tar, check=True)
    for room in ROOMS:
        assert (copy / "kce" / room).samefile(copy / room)
    shutil.rmtree(copy)
