"""Annotations on pages, and a search index kept in step with them. README.md says how to run it."""
