"""Access to a Kubernetes cluster, for all that ask one: credentials, requests, errors, paths, commands in pods.

Belongs here: what is the same whoever asks. Only ``access``, ``client`` and ``exec`` import the official client, which
takes half a second and 45 MB: import them only where a cluster is asked.

Never here: what is asked for, and when it is asked again.
"""
