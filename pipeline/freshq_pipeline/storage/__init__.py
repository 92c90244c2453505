"""Files on a disk or in a bucket, and what a run stores for the next one."""
