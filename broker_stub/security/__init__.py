"""Who a client is, and what it may do (section 9 of docs/broker-semantics.md).

principal    the identity of a connection
"""

from kce.broker_stub.security.principal import ANONYMOUS, KafkaPrincipal

__all__ = ["ANONYMOUS", "KafkaPrincipal"]
