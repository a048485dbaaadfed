"""Endpoints: destinations of published events that are rows of the database."""
