"""Converts manifests and command lines of other projects to ours.

Belongs here: one module for each kind, pure: a document in, a document and what was changed out.

Never here: files, requests.
"""
