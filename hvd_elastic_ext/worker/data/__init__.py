"""Which rank trains on what: samples, records, batches, and the rate that goes with them.

Belongs here: arithmetic and samplers that are exact for any sequence of worlds.

Never here: commits, or collectives, but for the exchange of shards' lengths.
"""
