"""Loads the test support, nothing else."""

pytest_plugins = [
    "tests.support.fix_db",
    "tests.support.fix_groonga",
    "tests.support.fix_hostile",
    "tests.support.fix_log",
    "tests.support.fix_loop",
    "tests.support.fix_pooler",
    "tests.support.fix_required",
    "tests.support.fix_stress",
    "tests.support.fix_worker",
]
