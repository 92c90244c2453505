"""Tables themselves: described in a file, planned, changed while in use, attached."""
