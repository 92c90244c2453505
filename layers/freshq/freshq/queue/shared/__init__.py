"""State that the processes of a queue share, in shared records of its store.

Each module connects one policy to the store: it reads the record, lets the policy decide, and writes the
record unless it changed in between.
"""
