"""Filters messages by API, broker and time. Bad values raise ValueError with a hint."""

from __future__ import annotations

import datetime
from collections.abc import Collection

from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.pairing import Request, Response
from kce.captures.tcp.segments import Endpoint, endpoint_text
from kce.wire.registry import API_KEYS, BY_KEY


def api_key(text: str) -> int:
    """The key of the API with that name, in any case, or that number. Raises ValueError with a suggestion."""
    by_name = {api.name.lower(): api for api in API_KEYS}
    wanted = text.lower().removesuffix("request").removesuffix("response")
    if wanted in by_name:
        return by_name[wanted].key
    if text.isdecimal() and int(text) in BY_KEY:
        return int(text)
    import difflib

    close = difflib.get_close_matches(wanted, by_name, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(by_name[name].name for name in close)}?" if close else ""
    raise ValueError(f"Kafka has no API {text!r}{hint}")


def time_ns(text: str) -> int:
    """ISO 8601 (UTC without a zone) to nanoseconds since 1970. Raises ValueError."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no ISO 8601 time, such as 2026-11-21T02:45:22.5") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (since // datetime.timedelta(microseconds=1)) * 1000


class Selection:
    """Messages of any of ``api_keys``, on connections to any of ``brokers``; empty means all.

    A broker is an id, or an address as packets show it or as it was announced; ``cluster`` is learnt from the whole
    capture. ``since_ns`` is inclusive, ``until_ns`` exclusive; both are compared with the time of the packet that
    completes the message. Raises ValueError for what is neither, and for an id that the capture does not
    announce.
    """

    def __init__(
        self,
        *,
        api_keys: Collection[int] = (),
        brokers: Collection[str] = (),
        cluster: Cluster | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> None:
        self.api_keys = frozenset(api_keys)
        self._brokers = frozenset(brokers)
        self._cluster = cluster or Cluster()
        self.since_ns = since_ns
        self.until_ns = until_ns
        self._servers: dict[Endpoint, bool] = {}
        announced = sorted({listener.broker_id for listener in self._cluster.listeners})
        for broker in self._brokers:
            if broker.isdecimal() and int(broker) not in announced:
                known = f"announced are {', '.join(map(str, announced))}" if announced else "it announces none"
                raise ValueError(f"no UpdateMetadata request announces a broker {broker}: {known}")
            if not broker.isdecimal() and not _is_address(broker):
                raise ValueError(f"{broker!r} is neither a broker's id nor HOST:PORT")

    def __contains__(self, message: object) -> bool:
        if not isinstance(message, (Request, Response)):
            return False
        request = message if isinstance(message, Request) else message.request
        if self.api_keys and request.api_key not in self.api_keys:
            return False
        if self.since_ns is not None and message.place.time_ns < self.since_ns:
            return False
        if self.until_ns is not None and message.place.time_ns >= self.until_ns:
            return False
        return self.is_to(request.peers.server)

    def is_to(self, server: Endpoint) -> bool:
        """Whether a server is one of the brokers."""
        if not self._brokers:
            return True
        found = self._servers.get(server)
        if found is None:
            names = {endpoint_text(*server)}
            for listener in self._cluster.listeners_at(server):
                names |= {str(listener.broker_id), f"{listener.host}:{listener.port}"}
            found = self._servers[server] = not self._brokers.isdisjoint(names)
        return found


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536
