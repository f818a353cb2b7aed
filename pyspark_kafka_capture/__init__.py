"""Where Spark finds ``spark.read.format("kafka-capture")`` by itself.

Spark looks for Python data sources in top-level modules called ``pyspark_...`` that hold a class ``DefaultSource``; the
name to read by is what that class says.
"""

from kce.captures.spark.source import KafkaCapture as DefaultSource

__all__ = ["DefaultSource"]
