"""`freshq match`: the verbs of a `MatchQueue`."""
