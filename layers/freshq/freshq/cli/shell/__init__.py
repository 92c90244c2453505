"""`freshq shell`: the commands of a queue, typed or piped, with a current task."""
