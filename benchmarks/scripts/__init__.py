"""What a case runs in processes of its own: each prints nothing, and leaves what it measured in a file.

Belongs here: scripts that work alike with the stock State and with ours.
Never here: a judgement of what they measure.
"""
