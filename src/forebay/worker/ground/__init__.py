"""What all rooms of a worker stand on: the jobs, batches and leases that it holds, its signals and
its log. It asks no other room.

Every room asks it what is held, whether the worker stops, and whether the database is away.
"""
