"""The same rows by the thousand, as Arrow, and equal to the exact lane's.

blocks   packets as arrays       bulk            connections, assembled      columns   rows
packet_columns, control_columns  rows of single levels                       body_programs  what is run over frames
*_kernels                        their loops, compiled by numba
"""

from kce.extras import require

require("numpy", "numba", "pyarrow", purpose="kce.captures.fast")
