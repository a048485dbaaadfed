"""Forebay: a transactional job log for PostgreSQL."""
