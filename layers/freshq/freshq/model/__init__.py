"""A task and its life: its states, its options, the rules of each verb. Pure."""
