"""What pcap and pcapng files are made of. Sources: pcap-savefile(5) and draft-ietf-opsawg-pcapng."""

from __future__ import annotations

#: A longer packet or block is damage: the largest snaplen in use is 256 KiB, a TCP segment at most 64 KiB.
MAX_BLOCK_BYTES = 16 * 1024 * 1024

#: pcap's magic numbers: byte order, and nanoseconds in a unit of the fraction of its seconds
PCAP_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
PCAP_HEADER_BYTES = 24

#: pcapng's byte-order magics, and kinds of blocks
BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
SECTION_HEADER = 0x0A0D0D0A
SECTION_HEADER_BYTES = b"\n\r\r\n"  # in either order
INTERFACE_DESCRIPTION = 1
OBSOLETE_PACKET = 2
SIMPLE_PACKET = 3
INTERFACE_STATISTICS = 5
ENHANCED_PACKET = 6
JOURNAL_ENTRY = 9

PACKET_BLOCKS = frozenset({OBSOLETE_PACKET, SIMPLE_PACKET, ENHANCED_PACKET})

#: Wireshark numbers journal entries among the packets.
NUMBERED_BLOCKS = PACKET_BLOCKS | {JOURNAL_ENTRY}
