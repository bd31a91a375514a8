"""The exactly-once store of a run: immutable files, and a numbered log that says which of them count.

Only the log is believed. Everything else in a run folder is either named by it with a checksum, or derived from it.
"""
