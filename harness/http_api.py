"""The commands of `kce up` and `kce proxy` over HTTP, with JSON, for tests in any language (docs/http.md).

    GET    /cluster               addresses and nodes: the content of --ready-file
    POST   /nodes/2/kill          and the other actions of `kce.harness.actions`, each with its path
    GET    /faults                the rules, and how often they matched and acted
    POST   /faults                add a rule: its fields as JSON, as in {"api": "LeaderAndIsr", "to": 2, "delay": 5}
    GET    /faults/1              one rule
    DELETE /faults/1              remove it: how often it matched and acted

Requests need the header `Authorization: Bearer TOKEN`, with the token that --ready-file has. Errors are
{"error": text}, with status 400, 401, 404, 405 or 409; for what is too large 413 or 431, for a failure here 500.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from kce.harness.actions import ACTIONS, ARGUMENTS, BY_NAME, Action
from kce.harness.errors import HarnessError, InvalidArgument
from kce.harness.http_server import HttpRequest, HttpResponse

#: executes a command of the supervisor; raises HarnessError
Execute = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class HttpApi:
    def __init__(self, execute: Execute, token: str) -> None:
        self._execute = execute
        self._token = token

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return _json(401, {"error": "the header Authorization: Bearer TOKEN is missing or wrong"})
        allowed = []
        for method, pattern, command in ROUTES:
            match = pattern.fullmatch(request.path)
            if match is not None and method == request.method:
                return await self._answer(command, match, request)
            if match is not None:
                allowed.append(method)
        if allowed:
            return _json(405, {"error": f"{request.path} takes {', '.join(allowed)}, not {request.method}"})
        return _json(404, {"error": f"there is no {request.path}; docs/http.md lists what there is"})

    async def _answer(self, command: str, match: re.Match[str], request: HttpRequest) -> HttpResponse:
        try:
            fields: Any = json.loads(request.body) if request.body else {}
        except (ValueError, RecursionError) as e:
            return _json(400, {"error": f"the body is not JSON: {e}"})
        if not isinstance(fields, dict):
            return _json(400, {"error": f"the body is not an object: {fields!r}"})
        groups = match.groupdict()
        named = {name: text if name in _TEXTS else int(text) for name, text in groups.items()}
        arguments = {"rule": fields} if command == "fault add" else {**fields, **named}
        action = BY_NAME.get(command)
        if action is not None and action.values(arguments) is None:
            wanted = ", ".join(f"{name} ({ARGUMENTS[name][0].__name__})" for name in action.arguments)
            return _json(400, {"error": f"{command} needs {wanted} in the path or in the body"})
        if action is not None and (why := _not_understood(action, fields)) is not None:
            return _json(400, {"error": why})
        try:
            return _json(200, await self._execute({**arguments, "command": command}))
        except HarnessError as e:
            unknown = str(e).startswith(("there is no ", "unknown topic ", "not a command: "))
            invalid = isinstance(e, InvalidArgument) or action is None
            return _json(404 if unknown else 400 if invalid else 409, {"error": str(e)})


def _not_understood(action: Action, fields: dict[str, Any]) -> str | None:
    """What of a body has no meaning: to ignore a misspelt name would hide it."""
    known = (*action.arguments, "wait")
    if unknown := [name for name in fields if name not in known]:
        return f"{action.words} has no {', '.join(unknown)}; it has {', '.join(known)}"
    if type(fields.get("wait", False)) is not bool:
        return f"wait={fields['wait']!r}: must be true or false"
    return None


_TEXTS = {name for name, (kind, _) in ARGUMENTS.items() if kind is str}
_FAULT = re.compile(r"/faults/(?P<number>\d{1,10})")

#: method, path, command
ROUTES = (
    ("GET", re.compile("/cluster"), "describe"),
    *((action.method, action.pattern, action.words) for action in ACTIONS),
    ("GET", re.compile("/faults"), "fault stats"),
    ("POST", re.compile("/faults"), "fault add"),
    ("GET", _FAULT, "fault stats"),
    ("DELETE", _FAULT, "fault remove"),
)


def _json(status: int, content: Any) -> HttpResponse:
    return HttpResponse(status, "application/json", json.dumps(content).encode() + b"\n")
