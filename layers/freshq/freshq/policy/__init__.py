"""Pure policy: no clock, no randomness, no database. Time, counters and random numbers are arguments."""
