"""One module per API: request and broker state in, response out.

base           the state that handlers use, and the type of a table entry
long_answers   answers to requests of very many elements, made in steps
kafka_apis     the table of handlers: to serve another API, write its module and add it there
"""
