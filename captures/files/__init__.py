"""Capture files: packets out of pcap and pcapng, splits of large files, and a pcapng writer.

locations      paths, globs, URIs               byte_source     a file or a pipe behind a cursor
formats        constants of pcap and pcapng     index, split    where a file may be split
pcap           packets, one at a time           walkers         packets by the thousand; packet_kernels: their loops
pcapng_writer  pcapng output
"""
