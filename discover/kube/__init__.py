"""An API server: what it is asked, in which order, and what its answers come to.

Belongs here: lists and watches, changes, the client, views of objects. ``client`` alone imports ``kubernetes``.

Never here: which pods are hosts.
"""
