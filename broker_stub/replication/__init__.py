"""Replication: what clients and followers do with a leader's log, and how followers fetch (rules B2 to B5, CS-9).

replication    puts the rest together for one broker
data_plane     appends, reads and look-ups, and the requests that wait for them
  reading      reads of one partition
  read_replica the follower that a consumer is sent to
  deletion     DeleteRecords: the start of a log moves
  fetch_sessions  what fetchers want, so that requests list only changes
isr            when a leader proposes that a follower joins or leaves the ISR
fetcher        the followers' side: a task for each leader
  leader_connection  its requests
  follower_session   what the leader knows already
"""
