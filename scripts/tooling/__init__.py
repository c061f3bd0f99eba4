"""The modules of scripts/setup and scripts/build-horovod: standard library only, since nothing is installed yet.

Never here: anything that the package imports, or that needs the virtual environment.
"""
