"""Simulated servers: pure models, virtual time around them, and the same models behind HTTP.

Nothing is imported here: the HTTP face must start in well under a second, so each user names the module it needs.
"""
