"""Constants of pcap and pcapng, and the magic numbers of other files.

Sources: pcap-savefile(5) and draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

#: A longer packet or block is damage: the largest snap length in use is 256 KiB, a TCP segment at most 64 KiB.
MAX_BLOCK_BYTES = 16 * 1024 * 1024

#: The limit of 64-bit times: the year 2262.
MAX_TIME_NS = 2**63 - 1

#: pcap magic numbers: (byte order, nanoseconds per unit of the fraction)
PCAP_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
PCAP_HEADER_BYTES = 24

#: pcapng byte-order magics and block types
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

#: Magic numbers of other files, for error messages.
_OTHER_FILES = (
    (b"\x7fELF", "an ELF program"),
    (b"\xfd7zXZ\x00", "compressed with xz; decompress it first"),
    (b"BZh", "compressed with bzip2; decompress it first"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG picture"),
    (b"PAR1", "a Parquet file"),
    (b"snoop\x00", "a snoop capture; convert it with editcap"),
    (b"\x34\xcd\xb2\xa1", "a pcap of the modified kind; convert it with editcap"),
)


def other_file(head: bytes) -> str | None:
    """The kind of file that begins with ``head``, for an error message; None if unknown."""
    for magic, what in _OTHER_FILES:
        if head.startswith(magic):
            return what
    return "text" if _is_text(head) else None


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as e:
        if e.start < len(head) - 3:
            return False
        text = head[: e.start].decode()
    return all(c.isprintable() or c.isspace() for c in text)
