"""The worker as a process: makes the parts of the other rooms, connects, starts and stops them, and
answers whether they live.

It asks every room; no room asks it.
"""
