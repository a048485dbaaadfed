"""The only part that talks to PostgreSQL: sessions, drivers' connections, migrations, errors."""
