"""The reactor: sockets and queues, and nothing of what requests mean (docs/broker-semantics.md, section 1).

acceptor         one a listener: accepts, hands each connection to the next processor
processor        one a network thread: connections, parsing, the response queue
connection       one a client: reads, is muted, writes
request_channel  requests to handlers, answers back; what a handler holds
handler_pool     runs requests
socket_server    planes of all of these; bind, enable, drain
"""

from __future__ import annotations

from broker_stub.reactor.acceptor import BindError
from broker_stub.reactor.metrics import ApiMetrics, RequestMetrics
from broker_stub.reactor.request_channel import Apis, ConnectionContext, Request, RequestContext
from broker_stub.reactor.socket_server import SocketServer

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
