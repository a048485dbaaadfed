"""The guard: finds sessions that block clean-up of old rows and segments, and ends them if a
rule says so.
"""
