"""Packages of the user's own: an overlay on the share, which is the interpreter of one kernel."""
