"""A recording played back: requests to live brokers (replay, restarts), answers to live requests (impersonation).

rewrite: epochs of requests, and answers compared
"""
