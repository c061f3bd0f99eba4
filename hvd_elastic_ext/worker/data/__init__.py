"""The assignment of samples, records and batches to ranks.

Belongs here: arithmetic and samplers that are exact for any sequence of worlds.

Never here: commits; collectives, except for the exchange of shard lengths.
"""
