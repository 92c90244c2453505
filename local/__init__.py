"""The embedded AWS emulator, the demonstration on it, and the scripts behind make targets."""
