"""The import hook of training processes. Only ``sitecustomize.py`` belongs here.

This folder is on ``PYTHONPATH`` of training processes: any other module in it would hide one of the user's.
"""
