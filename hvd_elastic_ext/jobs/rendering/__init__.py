"""A job as the objects that an API server takes. The manifests in ``docker/manifests`` are the templates.

Belongs here: what of a template changes with the job; pure. Never here: files, requests, how a command line is read.
"""
