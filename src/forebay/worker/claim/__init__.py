"""Decides when the worker looks for jobs, from which lane it claims next, and how many.

It asks lease for the open lease and run how much it can take, and gives the claimed jobs to run. No
room but process asks it.
"""
