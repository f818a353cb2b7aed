"""TCP: link layers, IP and TCP of a packet, and what each side of a connection sent, in order, with its gaps.

segments    link layers, IP, TCP -> segments      incident    several captures of one incident, clocks corrected
streams     both sides of a connection            directions  one side
tls         encrypted connections, through tshark
"""
