"""Keeps the worker's leases open, and gives up those that are lost.

Claim asks it for the lease to claim under. It tells run and settle which jobs are lost with a
lease, and asks settle what must still be written.
"""
