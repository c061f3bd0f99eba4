"""The import hook of training processes.

Belongs here: ``sitecustomize.py``. Never here: any other module. This folder is on ``PYTHONPATH`` of
training processes: a module in it would hide one of the user's.
"""
