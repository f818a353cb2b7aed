"""Captures of Kafka's traffic: read, decoded, recorded, explained. Knows only ``wire``.

    file -> packet -> segment -> bytes in order -> frame -> request and response -> line, row, finding

locations      paths, globs, URIs                         byte_source    a file or a pipe behind a cursor
formats        what pcap and pcapng are made of           index          where a file may be cut, proven
pcap           packets out of pcap and pcapng             quality        what could not be read, counted
segments       link layers, IP, TCP -> segments           tcp_streams    what each side sent, in order; gaps
ports          of listeners, where they are given         tcp_directions one side of that
recognise      what is a Kafka request, what is not       framing        frames out of a stream with gaps
exchanges      requests and their responses, decoded      cluster        whose listener an address is
incident       several files of one incident              tls            encrypted connections, through tshark
decode         all of these
render         as text and as JSON                        selection      by API, broker and time
rows           the one definition of all columns          tabulate       exchanges as rows
assembly       segments in, messages out                  bulk           the same by the thousand, and equal to it
columns        rows by the thousand, as Arrow             walkers        packets by the thousand
*_kernels      their loops                                body_programs  what is run over frames
recorder       live streams into pcapng; merge            pcapng_writer  the file format
replay         requests again, at live brokers            rewrite        their epochs; answers compared
impersonation  recorded answers for live requests
live           an interface into pcapng, rotating         packet_filter  the kernel looks for ports
spark/         the same at any size, analyses, report     samples/       captures of real Kafka, with the truth

Whatever the bytes, what escapes from here is ``CaptureError``, one line that names the file and the place; what can
still be read is read, and the rest is told in ``Quality``.
"""
