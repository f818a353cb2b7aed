"""The fast path: the same rows as the slow path's, by the thousand, as Arrow.

blocks           packets as arrays           bulk             streams, frames and exchanges     columns   their rows
messages         the decoder of `kce decode`  sheets           its messages in order, not yet made
lines            its lines of text            counts           its summary
packet_columns   rows of packets             control_columns  contents of control requests
body_programs    programs that check frames  text_programs    programs that also print what is in them
segment_counts   retransmissions and resets
divided          blocks divided by connection, for a shuffle; cuts: where large connections are divided, too
*_kernels        their loops, compiled by numba
"""

from kce.extras import require

require("numpy", "numba", "pyarrow", purpose="kce.captures.fast")
