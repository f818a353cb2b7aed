"""The client's side of the remote control of `kce up` and `kce proxy`: finds running ones, and sends them commands.

Commands for a node import nothing more of the project than this.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from kce.harness.errors import HarnessError
from kce.harness.guard import birth

ANSWER_TIMEOUT_S = 120


def registry() -> Path:
    """The folder of this user's running clusters. Raises HarnessError."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        with suppress(OSError):  # after `su` and `sudo` it is often that of the user before
            return _own_folder(runtime)
    base = tempfile.gettempdir()
    try:
        return _own_folder(base)
    except OSError as e:
        raise HarnessError(f"no folder of running clusters can be made in {base}: {e.strerror or e}") from None


def _own_folder(base: str) -> Path:
    folder = Path(base) / f"kce-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise HarnessError(f"{folder} belongs to another user: set XDG_RUNTIME_DIR to a folder of your own")
    return folder


def running_clusters() -> list[dict[str, Any]]:
    """Every running cluster of this user, the latest first."""
    found = []
    for path in registry().glob("*.json"):
        try:
            cluster = json.loads(path.read_text())
            alive = birth(cluster["pid"]) == cluster["birth"]
        except (OSError, ValueError, KeyError):
            continue
        if alive:
            found.append((path.stat().st_mtime, cluster))
        else:
            path.unlink(missing_ok=True)
            path.with_suffix(".sock").unlink(missing_ok=True)
    return [cluster for _, cluster in sorted(found, key=lambda item: item[0], reverse=True)]


def called(cluster: dict[str, Any]) -> str:
    """How messages name it."""
    return str(cluster.get("name") or f"pid {cluster['pid']}")


def _is_proxy(cluster: dict[str, Any]) -> bool:
    return cluster.get("kind") == "proxy"


def _where(cluster: dict[str, Any]) -> str:
    return f"proxy to {cluster['to']}" if _is_proxy(cluster) else f"ZooKeeper {cluster['zookeeper']}"


def _no_proxy(cluster: dict[str, Any]) -> dict[str, Any]:
    if _is_proxy(cluster):
        raise HarnessError(f"{called(cluster)} is a proxy: this command needs a cluster of `kce up`")
    return cluster


def named(name: str) -> dict[str, Any] | None:
    """The running cluster of that name."""
    return next((cluster for cluster in running_clusters() if cluster.get("name") == name), None)


def _called(text: str) -> dict[str, Any] | None:
    """The running cluster of that name, or of that pid: one without a name has nothing else."""
    return named(text) or next((cluster for cluster in running_clusters() if str(cluster["pid"]) == text), None)


def find_cluster(ready_file: Path | None, *, or_proxy: bool = False) -> dict[str, Any]:
    """The cluster that ``ready_file`` describes, or of that name or pid, or the only one that runs; ``or_proxy``: or a
    proxy.

    Raises HarnessError.
    """
    if ready_file is not None:  # a name goes before a file or folder that is called the same
        cluster = _called(str(ready_file)) or _described_by(ready_file)
        return cluster if or_proxy else _no_proxy(cluster)
    clusters = [cluster for cluster in running_clusters() if or_proxy or not _is_proxy(cluster)]
    if not clusters:
        also = " or `kce proxy`" if or_proxy else ""
        raise HarnessError(f"no cluster of yours is running: start one with `kce up`{also}")
    if len(clusters) > 1:
        listed = ", ".join(f"{called(c)} ({_where(c)})" for c in clusters)
        raise HarnessError(
            f"{len(clusters)} clusters of yours are running: {listed}. Choose one with --cluster: the NAME of "
            "`kce up --name NAME`, the pid, or the file that `kce up --ready-file FILE` wrote"
        )
    return clusters[0]


def _described_by(ready_file: Path) -> dict[str, Any]:
    """Raises HarnessError."""
    try:
        cluster = json.loads(ready_file.read_text())
    except FileNotFoundError:
        raise HarnessError(f"no cluster of yours is called {ready_file}, and there is no such file") from None
    except OSError as e:
        raise HarnessError(f"{ready_file} cannot be read: {e.strerror or e}") from None
    except ValueError as e:
        raise HarnessError(f"{ready_file} was not written by `kce up --ready-file`: {e}") from None
    if not isinstance(cluster, dict) or not {"pid", "birth", "socket"} <= cluster.keys():
        raise HarnessError(f"{ready_file} was not written by `kce up --ready-file`")
    return cluster


def command(cluster: dict[str, Any], name: str, **arguments: Any) -> dict[str, Any]:
    """Send one command to a running cluster and return its response. Raises HarnessError."""
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(ANSWER_TIMEOUT_S)
            s.connect(cluster["socket"])
            s.sendall(json.dumps({**arguments, "command": name}).encode() + b"\n")
            with s.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
    except (OSError, ValueError) as e:
        raise HarnessError(f"the cluster of pid {cluster.get('pid')} does not answer: {e}") from None
    if "error" in answer:
        raise HarnessError(answer["error"])
    return answer
