from tests.zookeeper.conformance.clients import client
from tests.zookeeper.conformance.nodes import f

__all__ = ["client", "f"]
