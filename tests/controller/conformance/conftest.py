from tests.controller.conformance.clients import f

__all__ = ["f"]
