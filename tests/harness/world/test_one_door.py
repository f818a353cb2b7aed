"""Only `kce.harness.world` reaches outside: no other module of a node opens a socket or a file, reads a clock, draws a
random number, or leaves its thread. pyproject.toml has the contract for modules; this checks names within them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
NODE = [
    *(ROOT / "wire").rglob("*.py"),
    *(ROOT / "zookeeper").rglob("*.py"),
    *(ROOT / "controller").rglob("*.py"),
    *(ROOT / "broker_stub").rglob("*.py"),
    ROOT / "harness" / "node.py",
    ROOT / "harness" / "node_logs.py",
    ROOT / "harness" / "connections.py",
    ROOT / "harness" / "links.py",
    ROOT / "harness" / "observed_link.py",
    ROOT / "harness" / "prometheus.py",
]
#: kazoo's side of the store is what the real world is made of, and so are the certificates of its configuration
REAL = {
    "zookeeper/store/kazoo_session.py", "zookeeper/store/kazoo_handler.py", "zookeeper/store/buffered_socket.py",
    "zookeeper/client_config.py",
}  # fmt: skip
EFFECTS = {
    "open", "input", "uuid.uuid1", "uuid.uuid4", "uuid4", "uuid1", "Random", "SystemRandom", "trio.socket",
    "trio.open_tcp_stream", "trio.open_tcp_listeners", "trio.serve_tcp", "trio.serve_listeners", "trio.to_thread",
    "trio.from_thread", "trio.run_process", "trio.open_file", "trio.Path", "trio.open_unix_socket",
    "trio.lowlevel.open_process", "datetime.now", "datetime.datetime.now", "datetime.utcnow",
}  # fmt: skip


def effects(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        used = node.func if isinstance(node, ast.Call) else node
        if isinstance(node, (ast.Call, ast.Attribute)) and (name := ast.unparse(used)) in EFFECTS:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"


def test_nothing_but_the_world_reaches_outside() -> None:
    found = {effect for path in NODE if str(path.relative_to(ROOT)) not in REAL for effect in effects(path)}
    assert found == set()


def test_the_check_finds_effects() -> None:
    found = list(effects(ROOT / "harness" / "world" / "real_world.py"))
    assert any("trio.open_tcp_stream" in effect for effect in found)
    assert any("Random" in effect for effect in found)
