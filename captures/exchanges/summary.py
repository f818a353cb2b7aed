"""A summary of a capture in a few lines: requests, controllers and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kce import wire
from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.errors import nested_errors
from kce.captures.exchanges.pairing import Request, Response
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.render import printable, time_text
from kce.wire import error_name
from kce.wire.registry import BY_KEY, CONTROL_REQUESTS


@dataclass(slots=True)
class _Api:
    requests: int = 0
    responses: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    slowest_ns: int = 0


@dataclass(slots=True)
class _Controller:
    first_ns: int
    last_ns: int
    requests: int = 0
    fenced: int = 0


class Summary:
    """Counts messages as they are decoded."""

    def __init__(self) -> None:
        self._apis: dict[tuple[int, str, int], _Api] = {}
        self._controllers: dict[tuple[int, int], _Controller] = {}
        self._first_ns: int | None = None
        self._last_ns = 0

    @property
    def is_empty(self) -> bool:
        return self._first_ns is None

    def add(self, key: int, version: int, *, requests: int, responses: int, slowest_ns: int, last_ns: int) -> None:
        """Count messages of one API and version, none of them the first, of a controller or an error."""
        api = self._apis.setdefault((key, BY_KEY[key].name, version), _Api())
        api.requests += requests
        api.responses += responses
        api.slowest_ns = max(api.slowest_ns, slowest_ns)
        self._last_ns = max(self._last_ns, last_ns)

    def count(self, messages: Iterable[Request | Response]) -> None:
        for message in messages:
            request = message if isinstance(message, Request) else message.request
            self._first_ns = message.place.time_ns if self._first_ns is None else self._first_ns
            self._last_ns = max(self._last_ns, message.place.time_ns)
            api = self._apis.setdefault((request.api_key, request.api_name, request.version), _Api())
            if isinstance(message, Response):
                self._count_response(message, api)
            else:
                api.requests += 1
                if request.api_key in CONTROL_REQUESTS:
                    self._count_control(request)

    def _count_response(self, response: Response, api: _Api) -> None:
        api.responses += 1
        api.slowest_ns = max(api.slowest_ns, response.latency_ns)
        if response.error_code:
            api.errors[error_name(response.error_code)] += 1
        if response.body is not None:
            api.errors.update(error_name(code) for _, _, code in nested_errors(response.body, response.version))
        controller = self._controllers.get(_sender(response.request))
        if controller is not None and response.error_code == wire.ErrorCode.STALE_CONTROLLER_EPOCH:
            controller.fenced += 1

    def _count_control(self, request: Request) -> None:
        sender = _sender(request)
        if sender == _UNKNOWN:
            return
        time_ns = request.place.time_ns
        controller = self._controllers.setdefault(sender, _Controller(time_ns, time_ns))
        controller.last_ns = time_ns
        controller.requests += 1

    def lines(self, cluster: Cluster, quality: Quality) -> Iterator[str]:
        yield quality.summary()
        yield from quality.lines()
        if self._first_ns is not None:
            seconds = (self._last_ns - self._first_ns) / 1e9
            yield f"from {time_text(self._first_ns)} to {time_text(self._last_ns)}, {seconds:,.3f} s"
        for listener in sorted(cluster.listeners, key=lambda each: (each.broker_id, each.name, each.port)):
            yield f"broker {listener.broker_id}: {printable(listener.name)} {printable(listener.host)}:{listener.port}"
        for (epoch, controller_id), seen in sorted(self._controllers.items()):
            fenced = f", {seen.fenced:,} fenced" if seen.fenced else ""
            yield (
                f"controller {controller_id} in epoch {epoch}: {time_text(seen.first_ns)} to "
                f"{time_text(seen.last_ns)}, {seen.requests:,} control requests{fenced}"
            )
        for (_, name, version), api in sorted(self._apis.items()):
            errors = ", ".join(f"{number:,} {error}" for error, number in api.errors.most_common())
            slowest = f", slowest {api.slowest_ns / 1e6:,.1f} ms" if api.responses else ""
            yield (
                f"{name} v{version}: {api.requests:,} requests, {api.responses:,} responses{slowest}"
                + (f"; {errors}" if errors else "")
            )


_UNKNOWN = (-1, -1)


def _sender(request: Request) -> tuple[int, int]:
    """(controller epoch, controller id) of a control request."""
    source = request.head if request.body is None else request.body
    epoch, controller_id = getattr(source, "controller_epoch", None), getattr(source, "controller_id", None)
    return _UNKNOWN if epoch is None or controller_id is None else (epoch, controller_id)
