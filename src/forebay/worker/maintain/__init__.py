"""Does what a worker does for the whole database, beside its own jobs: maintenance and schedules,
if it leads them.

It asks only ground, and no room waits for it. It wakes claim, by way of process, when it made jobs
ready.
"""
