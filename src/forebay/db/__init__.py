"""The only package that talks to PostgreSQL: sessions, connections of the user's drivers,
errors.
"""
