"""Annotations on pages, and a search index that is kept in step with them. README.md says how to run it."""
