"""Kafka's message definitions: one file per API, one version-ranged table per message (`wire.schema` describes the
format). To add a version, edit its table and the API's row in `wire.registry`."""
