"""For commands that run until they are told to end: how they are told, and what they report."""
