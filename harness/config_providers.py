"""Kafka's `config.providers`: variables `${provider:[path:]key}` in a file of settings, such as passwords elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from kce.wire.configuration import ConfigError
from kce.wire.configuration.property_file import parse_properties

#: settings of these names choose providers
PROVIDERS: Final = "config.providers"
_VARIABLE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
#: of a path, or the empty one, the values with these keys; raises ConfigError
_Provider = Callable[[str, Iterable[str]], Mapping[str, str]]


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with the values of their variables, without those of providers.

    A variable of an unknown provider, or with an unknown key, stays as it is, like with Kafka. Raises ConfigError.
    """
    providers = {}
    for name in filter(None, settings.get(PROVIDERS, "").split(",")):
        of_class = settings.get(f"{PROVIDERS}.{name}.class")
        if of_class is not None:
            begin = f"{PROVIDERS}.{name}.param."
            parameters = {key.removeprefix(begin): value for key, value in settings.items() if key.startswith(begin)}
            providers[name] = _provider(f"{PROVIDERS}.{name}.class", of_class.strip(), parameters)

    def value(match: re.Match[str]) -> str:
        name, path, key = match.groups(default="")
        found = providers[name](path, (key,)) if name in providers else {}
        return found.get(key, match[0])

    return {
        key: _VARIABLE.sub(value, text) if providers else text
        for key, text in settings.items()
        if key != PROVIDERS and not key.startswith(f"{PROVIDERS}.")
    }


def _provider(key: str, of_class: str, parameters: Mapping[str, str]) -> _Provider:
    makers = {"File": _of_file, "Directory": _of_directory, "EnvVar": _of_environment}
    name = of_class.removeprefix(_PACKAGE).removesuffix("ConfigProvider")
    if of_class != f"{_PACKAGE}{name}ConfigProvider" or name not in makers:
        known = ", ".join(f"{_PACKAGE}{each}ConfigProvider" for each in makers)
        raise ConfigError(f"{key}={of_class}: must be one of {known}")
    return makers[name](parameters)


def _of_file(parameters: Mapping[str, str]) -> _Provider:
    def read(path: str, keys: Iterable[str]) -> Mapping[str, str]:
        if not _is_allowed(path, parameters):
            return {}
        try:
            return parse_properties(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise ConfigError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None

    return read


def _of_directory(parameters: Mapping[str, str]) -> _Provider:
    """Each file has a value."""

    def read(path: str, keys: Iterable[str]) -> Mapping[str, str]:
        if not _is_allowed(path, parameters):
            return {}
        files = {key: Path(path, key) for key in keys if key and Path(key).name == key}
        try:
            return {key: file.read_bytes().decode("utf-8", "replace") for key, file in files.items() if file.is_file()}
        except OSError as e:
            raise ConfigError(f"a file in {path} cannot be read: {e.strerror}") from None

    return read


def _of_environment(parameters: Mapping[str, str]) -> _Provider:
    try:
        allowed = re.compile(parameters.get("allowlist.pattern", ".*"))
    except re.error as e:
        raise ConfigError(f"allowlist.pattern={parameters['allowlist.pattern']}: {e}") from None

    def read(path: str, keys: Iterable[str]) -> Mapping[str, str]:
        if path:
            raise ConfigError(f"a variable of the environment has no path, but {path!r}")
        return {key: os.environ[key] for key in keys if key in os.environ and allowed.fullmatch(key)}

    return read


def _is_allowed(path: str, parameters: Mapping[str, str]) -> bool:
    roots = [Path(root) for root in parameters.get("allowed.paths", "").split(",") if root]
    where = Path(os.path.normpath(path))
    return bool(path) and (not roots or any(where.is_relative_to(root) for root in roots))
