"""`kce analyze` on a cluster: a real master and two workers, each a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures.samples import CAPTURES
from tests.captures.spark.standalone import SPARK_HOME, environment, standalone
from tests.tools import require

pytestmark = pytest.mark.slow

KCE = [sys.executable, "-c", "import sys; from kce.harness.cli import main; sys.exit(main())", "analyze"]
EXAMPLE = str(Path(__file__).parents[3] / "examples" / "analyze.py")
WHAT = [str(CAPTURES["kafka-3.9.1-zombie"]), "--only", "zombies"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(URL of the master, folder of the workers' work)."""
    require("java")
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder) as url:
        yield url, folder


@pytest.mark.parametrize(
    "command",
    [
        lambda url: [*KCE, *WHAT, "--master", url],
        lambda url: [
            str(SPARK_HOME / "bin" / "spark-submit"), "--master", url, "--conf", "spark.executor.memory=1g", EXAMPLE,
            *WHAT,
        ],
    ],
    ids=["master", "spark-submit"],
)  # fmt: skip
def test_it_runs_unchanged_on_the_workers(cluster, command):
    url, folder = cluster
    before = set(folder.glob("worker-*/app-*"))
    ran = subprocess.run(
        command(url), capture_output=True, text=True, timeout=300, cwd=folder, env=environment(), check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert re.search(r"alarm: Controller 2 \(epoch 1\) .* fenced by brokers 3 and 1 ", ran.stdout)
    ran_on = {app.parent.name for app in set(folder.glob("worker-*/app-*")) - before}
    assert ran_on == {"worker-0", "worker-1"}
