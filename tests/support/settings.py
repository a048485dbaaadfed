"""Settings as hostile as PostgreSQL allows, and the objects that a hostile search_path finds."""

import psycopg

#: The test's servers, which no deliverer has allowed yet: endpoints may lead there.
OUR_HOSTS = "insert into forebay.endpoint_host values ('127.0.0.1'), ('localhost')"

#: What text looks like, and how it is read.
OF_TEXT = {
    "client_encoding": "LATIN1",
    "datestyle": "German",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kolkata",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "xmloption": "document",
}

#: How statements are planned and run.
OF_PLANS = {
    "jit": "on",
    "jit_above_cost": "0",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_hashjoin": "off",
    "enable_partition_pruning": "off",
    "plan_cache_mode": "force_custom_plan",
    "row_security": "off",
    "plpgsql.extra_errors": "all",
}

#: Limits that stop what takes or waits for long.
OF_LIMITS = {
    "statement_timeout": "1s",
    "lock_timeout": "100ms",
    "idle_session_timeout": "500ms",
    "idle_in_transaction_session_timeout": "1s",
}

SEARCH_PATH = "rogue, pg_catalog, public"

HOSTILE = {
    **OF_TEXT,
    **OF_PLANS,
    **OF_LIMITS,
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
}

#: Found before those of the catalog.
EVIL = """
create schema rogue;
grant usage on schema rogue to public;
create function rogue.fail(text, text) returns boolean language plpgsql
    as $$ begin raise 'evil'; end $$;
create operator rogue.= (leftarg = text, rightarg = text, function = rogue.fail);
create operator rogue.<> (leftarg = text, rightarg = text, function = rogue.fail);
create function rogue.now() returns timestamptz language sql as $$
    select pg_catalog.now() - interval '1 year' $$;
create function rogue.pg_backend_pid() returns integer language sql as $$ select -1 $$;
create function rogue.set_config(text, text, boolean) returns text language plpgsql
    as $$ begin raise 'evil'; end $$;
create function rogue.format(text, variadic "any") returns text language internal as 'text_format';
create table rogue.log (evil text);
create table rogue.pg_stat_activity (evil text);
"""


def impose(conn: psycopg.Connection, settings: dict[str, str], subject: str) -> None:
    """Make settings the defaults of a subject, such as ``database x`` or ``role y``, for new
    sessions.
    """
    for name, value in settings.items():
        conn.execute(
            f"alter {subject} set {name} = {value if name == 'search_path' else repr(value)}"
        )


#: What the session of an application may have set; none gives up durability.
OF_APPLICATIONS = (
    "search_path = public",
    "standard_conforming_strings = off",
    "client_encoding = 'LATIN1'",
    "timezone = 'Asia/Kathmandu'",
    "datestyle = 'German'",
    "intervalstyle = 'sql_standard'",
    "plan_cache_mode = force_generic_plan",
    "enable_indexscan = off",
    "enable_nestloop = off",
    "extra_float_digits = -15",
    "array_nulls = off",
    "row_security = off",
)
