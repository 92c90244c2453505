"""Files on a disk or in a bucket, and the state that one run leaves for the next."""
