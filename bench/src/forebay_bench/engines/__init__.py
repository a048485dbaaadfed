"""Queues as they are usually built on PostgreSQL, small and readable, for comparison."""
