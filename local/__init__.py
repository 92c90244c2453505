"""The embedded AWS emulator, its demonstration, and the programs behind make targets."""
