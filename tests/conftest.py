"""Loads the test support, nothing else."""

pytest_plugins = ["tests.support.fix_db", "tests.support.fix_loop"]
