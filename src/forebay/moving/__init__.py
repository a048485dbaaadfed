"""Schedules and waiting jobs of other libraries, described in our words and written once.

A source is a module that yields what it finds; ``fit`` says what becomes of it here, and ``write``
is the only part that writes. Nothing is removed from a source.
"""
