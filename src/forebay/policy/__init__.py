"""Decisions without I/O: time, randomness and counts come in as arguments, numbers go out."""
