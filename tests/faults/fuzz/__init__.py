"""Inputs that strangers may send, damaged at random: no reader may take much memory or time, or raise what it does not
say. Inputs are told by target, seed and number: the same ones come again."""
