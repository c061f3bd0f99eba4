"""Manifests and command lines of others, as ours.

Belongs here: one module for each kind, pure: a document in, a document and what was changed out.

Never here: files, requests.
"""
