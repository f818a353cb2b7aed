"""Kafka requests and responses out of byte streams: recognised, framed, paired, decoded, shown.

recognise  what is a Kafka request, what is not   framing    frames out of a stream with gaps
pairing    requests and their responses           messages   their bodies
assembly   segments in, messages out              decode     a whole capture
cluster    whose listener an address is           selection  by API, broker and time
render     as text and as JSON
"""
