"""Loads the test support."""

from hypothesis import HealthCheck, settings

# No test depends on how long an example takes: a slow machine must not fail it.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

pytest_plugins = [
    "tests.support.fix_db",
    "tests.support.fix_disk",
    "tests.support.fix_groonga",
    "tests.support.fix_guards",
    "tests.support.fix_sinks",
    "tests.support.fix_hostile",
    "tests.support.fix_log",
    "tests.support.fix_loop",
    "tests.support.fix_pooler",
    "tests.support.fix_record",
    "tests.support.fix_release",
    "tests.support.fix_required",
    "tests.support.fix_stress",
    "tests.support.fix_time",
    "tests.support.fix_worker",
]
