"""Playback of a recording.

replay, restarts  requests to live brokers     impersonation  responses to live requests
recording         what a capture has to replay rewrite        epochs of requests; responses compared
"""
