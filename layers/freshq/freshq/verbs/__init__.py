"""The verbs of a queue, by what they are for; `freshq.queue.Queue` has them all."""
