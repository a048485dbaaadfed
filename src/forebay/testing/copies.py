"""A copy of a test database is foreign to its workers, as any copy is: this lets jobs run in it."""

from typing import Final

#: Runs in the copy. Nothing happens in the database that was copied, without the schema, on another
#: cluster, or for a role that may not write it.
OWN_COPY: Final = """
do $$
begin
    if not exists (
        select from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'forebay' and c.relname = 'cluster'
          and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'update')
    ) then
        return;
    end if;
    if exists (
        select from forebay.cluster c, forebay._identity() i
        where c.cluster_no = (select max(cluster_no) from forebay.cluster)
          and c.system_identifier = i.system_identifier
          and c.database_oid <> i.database_oid
    ) then
        update forebay.cluster set database_oid = (forebay._identity()).database_oid
        where cluster_no = (select max(cluster_no) from forebay.cluster);
    end if;
end
$$
"""
