"""Capture files: formats, where a file may be cut, packets out of pcap and pcapng, and pcapng written.

locations      paths, globs, URIs                byte_source     a file or a pipe behind a cursor
formats        what pcap and pcapng are made of  index, split    where a file may be cut, proven
pcap           packets, one at a time            walkers         packets by the thousand; packet_kernels: their loops
pcapng_writer  the file format
"""
