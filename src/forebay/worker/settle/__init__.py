"""Writes to the database how jobs ended and what they report, then tells the application's
listeners.

Run gives it outcomes and progress; lease asks it to forget those of a lost lease. It asks only
ground.
"""
