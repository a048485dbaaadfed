-- grant: operator, worker

-- Tell which hosts deliverers may call besides public addresses: what their setting `endpoint_hosts`
-- lists. It replaces the list before. A deliverer does it when it starts; do it before the first one
-- starts. forebay.create_endpoint(), forebay.alter_endpoint() and forebay.validate_endpoint() refuse
-- other addresses that are not public. This list permits nothing: at each call the setting of the
-- deliverer decides. Returns whether the list changed.
--
-- Parameters:
--   hosts  at most 1,000 networks such as `10.1.0.0/16`, addresses, names, or `*.internal`; each
--          perhaps with a port
--
-- Errors: JQ001 a bad list.
-- See: docs/howto/endpoints.md#allow-more-than-https-to-public-addresses
create function forebay.allow_hosts(hosts text[]) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- planner: indexed
as $$
#variable_conflict use_column
declare
    v_hosts  constant text[] := array(select distinct h collate "C" from unnest(allow_hosts.hosts) h order by 1);
    v_before constant text[] := array(select e.host from forebay.endpoint_host e order by e.host);
begin
    if allow_hosts.hosts is null or cardinality(v_hosts) > 1000
       or exists (select from unnest(v_hosts) h where (length(h) between 1 and 300 and h !~ E'[\\s{control}]') is not true) then
        raise exception using errcode = 'JQ001', column = 'hosts', message = 'hosts is not a list of at most 1000 hosts of 1 to 300 characters',
            hint = $h$Such as '{10.1.0.0/16,cache.internal:6379}'. Nothing was changed.$h$;
    elsif v_hosts = v_before then
        return false;
    end if;
    delete from forebay.endpoint_host e where e.host <> all (v_hosts);
    insert into forebay.endpoint_host (host) select h from unnest(v_hosts) h order by 1 on conflict do nothing;
    perform forebay._record_event('endpoints.hosts', p_old => jsonb_build_object('hosts', v_before), p_new => jsonb_build_object('hosts', v_hosts));
    return true;
end
$$;
