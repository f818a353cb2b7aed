"""The slow path: Kafka requests and responses out of byte streams.

recognise  is this a Kafka request?                framing    frames out of a stream with gaps
undecided  is a connection Kafka's?                pairing    responses matched with requests
messages   decoded bodies
assembly   segments in, messages out               decode     a whole capture
cluster    listeners, brokers and topics, learnt   selection  filters by API, broker and time
render     messages as text and JSON               quality    counts of what could not be read
ports      listener ports, if given                seams      where a connection can be cut, and resumed
"""
