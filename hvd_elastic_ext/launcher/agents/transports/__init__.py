"""Ways to start an agent on a host: as a child process, over ssh, in a pod.

Belongs here: command lines, keys of hosts, child processes, streams to pods.

Never here: which host gets an agent, and when.
"""
