"""What the processes of a queue share: policies, kept in small records of its store.

Each module joins one pure policy to the store: it reads the record, lets the policy decide, and writes
the record back on the condition that it did not change.
"""
