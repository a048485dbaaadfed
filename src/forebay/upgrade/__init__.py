"""Bring the schema of a database to the version of this library, and rehearse that."""
