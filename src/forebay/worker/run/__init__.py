"""Runs the claimed jobs: in tasks, threads, transactions and child processes, each once, and
decides how they ended.

Claim gives it jobs and asks what is free. It gives each outcome to its ``Outcomes``, which is
settle in a worker, and the pipe to the parent in a child process.
"""
