"""The worker: claims tasks, runs them and settles them."""
