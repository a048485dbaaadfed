-- Identity of this database: the cluster and the database within it.
create function forebay._identity(out system_identifier bigint, out database_oid oid)
language sql stable
as $$
    select c.system_identifier, d.oid
    from pg_control_system() c, pg_database d where d.datname = current_database()
$$;


create function forebay._cluster_stamp() returns bigint
language sql stable
as $$
    select hashtextextended(pg_relation_filepath('forebay.cluster') collate "C",
                            (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint)
$$;


create function forebay._is_same_cluster() returns boolean
language sql volatile
as $$ select coalesce(pg_sequence_last_value('forebay.same_cluster_seq') = forebay._cluster_stamp(), false) $$;


-- Raise when this schema was restored from another cluster and not yet adopted. Writes nothing, so callers that must not have
-- written can use it.
--
-- Errors: JQ030.
create function forebay._require_same_cluster() returns void
language plpgsql volatile
as $$
declare
    v_recorded record;
    v_here  record;
begin
    if forebay._is_same_cluster() then
        return;
    end if;
    select c.system_identifier, c.database_oid into v_recorded from forebay.cluster c order by c.cluster_no desc limit 1;
    select i.* into v_here from forebay._identity() i;
    if v_recorded.system_identifier is distinct from v_here.system_identifier
       or v_recorded.database_oid is distinct from v_here.database_oid then
        raise exception using errcode = 'JQ030',
            message = format('this schema belongs to cluster %s, database %s; this is cluster %s, database %s',
                             v_recorded.system_identifier, v_recorded.database_oid, v_here.system_identifier, v_here.database_oid),
            detail = jsonb_build_object('recorded', format('%s/%s', v_recorded.system_identifier, v_recorded.database_oid),
                                        'actual', format('%s/%s', v_here.system_identifier, v_here.database_oid)),
            hint = 'The schema was restored from another cluster. Nothing runs until you call forebay adopt --resume or --discard.';
    end if;
end
$$;


-- Remember until the next start of the server that this schema belongs to this cluster. Only after
-- forebay._require_same_cluster(), and where a transaction may draw its id.
create function forebay._record_same_cluster() returns void
language sql volatile
as $$ select setval('forebay.same_cluster_seq', forebay._cluster_stamp()) $$;
