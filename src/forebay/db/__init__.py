"""The only part that talks to PostgreSQL: sessions, callers' connections, migrations, errors."""
