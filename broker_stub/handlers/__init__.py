"""One file per API: request and broker state in, response out.

base         what handlers work on, and the shape of one entry of the table
kafka_apis   the table; add an API by adding its module there
"""
