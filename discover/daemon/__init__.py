"""The daemon: its settings, assembly and loop, and where its hosts come from in a cluster.

Belongs here: what connects watches, verdicts and places to publish to; the probe of new hosts; the daemon's own pod.

Never here: code that only one of the other folders needs. Nothing outside but ``cli`` imports this.
"""
