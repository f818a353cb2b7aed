"""Variables in files of settings, with Kafka's three providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kce.harness.config_providers import resolved
from kce.wire.configuration import ConfigError

PACKAGE = "org.apache.kafka.common.config.provider."


def providers(**parameters: str) -> dict[str, str]:
    names = {"file": "File", "dir": "Directory", "env": "EnvVar"}
    given = {f"config.providers.{name}.class": f"{PACKAGE}{kind}ConfigProvider" for name, kind in names.items()}
    given |= {f"config.providers.{name}.param.allowed.paths": roots for name, roots in parameters.items()}
    return {"config.providers": ",".join(names), **given}


def test_files_directories_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").write_text("port=9092\nuser\\:name = b\\u00fcro\n", encoding="utf-8")
    monkeypatch.setenv("RACK", "r1")
    found = resolved(
        providers()
        | {
            "listeners": f"PLAINTEXT://:${{file:{tmp_path}/secrets:port}}",
            "two": f"${{env:RACK}}-${{file:{tmp_path}/secrets:user:name}}",
            "whole": f"${{dir:{tmp_path}:secrets}}",
            "plain": "$1 ${none} ${",
        }
    )
    assert found == {
        "listeners": "PLAINTEXT://:9092",
        "two": "r1-büro",
        "whole": "port=9092\nuser\\:name = b\\u00fcro\n",
        "plain": "$1 ${none} ${",
    }


def test_what_is_not_there_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a=1")
    left = {
        "a": "${other:x}", "b": f"${{file:{tmp_path}/file:nothing}}", "c": "${env:NO_SUCH_VARIABLE_HERE}",
        "d": f"${{dir:{tmp_path}/nowhere:file}}", "e": f"${{dir:{tmp_path}:../file}}",
    }  # fmt: skip
    assert resolved(providers() | left) == left
    assert resolved({"a": "${env:PATH}"}) == {"a": "${env:PATH}"}
    assert resolved({"config.providers": "env", "a": "${env:PATH}"}) == {"a": "${env:PATH}"}


def test_only_allowed_paths_are_read(tmp_path: Path) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("a=1")
    found = resolved(
        providers(file=f"/nowhere,{tmp_path}/in", dir=f"{tmp_path}/in")
        | {
            "in": f"${{file:{tmp_path}/in/f:a}}${{dir:{tmp_path}/in:f}}",
            "out": f"${{file:{tmp_path}/in/../out/f:a}}",
            "dir": f"${{dir:{tmp_path}/out:f}}",
        }
    )
    assert found["in"] == "1a=1"
    assert found["out"].startswith("${")
    assert found["dir"].startswith("${")


def test_names_of_the_environment_may_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_A", "1")
    monkeypatch.setenv("OTHER", "2")
    limit = {"config.providers.env.param.allowlist.pattern": "KAFKA_.*"}
    found = resolved(providers() | limit | {"a": "${env:KAFKA_A}", "b": "${env:OTHER}"})
    assert found == {"a": "1", "b": "${env:OTHER}"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"config.providers": "v", "config.providers.v.class": "com.example.Vault"}, "com.example.Vault: must be one"),
        ({**providers(), "a": "${file:/no/such/file:a}"}, "cannot be read"),
        ({**providers(), "a": "${env:path:A}"}, "has no path"),
        ({**providers(), "config.providers.env.param.allowlist.pattern": "("}, "allowlist.pattern"),
    ],
)
def test_what_is_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolved(settings)
