"""pytest plugin: the fixture `kafka_cluster`."""
