"""Captures of Kafka's traffic: read, decoded, recorded, replayed, analysed. Knows only ``wire``.

    file -> packets -> TCP segments -> streams -> frames -> requests and responses -> lines, rows, findings

files      pcap and pcapng: packets, and where a file may be split
tcp        segments out of packets, stream reassembly, several files of one incident, TLS
exchanges  requests and responses: recognised, framed, paired, decoded, rendered  (the slow path, the reference)
tables     the columns of all tables, and exchanges as rows
fast       the same rows by the thousand  (the fast path)
record     live streams and network interfaces into pcapng
replay     playback: recorded requests to live brokers, recorded responses to live requests
spark      the data source, the analyses and the report
samples    captures of real Kafka clusters, with the ground truth

A wing imports those above it. Whatever the bytes, the only exception is ``CaptureError``: one line that names the file
and the place. What can still be read is read, and the rest is counted in ``Quality``.
"""
