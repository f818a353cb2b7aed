"""The reactor: connections and queues, independent of the APIs (docs/broker-semantics.md, section 1).

acceptor         one per listener: accepts connections and assigns them to processors
processor        one per network thread: connections, parsing, the response queue
connection       one per client: reads, is muted, has requests handled, writes (`incoming`, `outgoing`)
request          the Request that handlers use, and its response
request_channel  the queue of requests and the handlers of a plane
turns            keeps the data plane from starving the control plane
socket_server    the planes of all of these: bind, enable, drain
"""

from __future__ import annotations

from kce.broker_stub.reactor.acceptor import BindError
from kce.broker_stub.reactor.metrics import ApiMetrics, RequestMetrics
from kce.broker_stub.reactor.request import Apis, ConnectionContext, Request, RequestContext
from kce.broker_stub.reactor.socket_server import SocketServer

__all__ = [
    "ApiMetrics",
    "Apis",
    "BindError",
    "ConnectionContext",
    "Request",
    "RequestContext",
    "RequestMetrics",
    "SocketServer",
]
