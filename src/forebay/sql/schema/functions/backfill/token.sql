-- grant: producer, worker

-- Compute the token of a set of jobs: their number, the time, and a digest of these, of kind,
-- options and rows. With `token`, refuse any other set, and a token of 29 days ago.
--
-- Errors: JQ001 bad options, JQ040 another token.
create function forebay.backfill_token_v1(kind text, options jsonb, jobs bigint, digest numeric, token text default null)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   constant bigint := extract(epoch from forebay._now()) * 1000000;
    v_made  constant bigint := coalesce(substring(backfill_token_v1.token from E'^\\d{1,18}-(\\d{1,18})-')::bigint, v_now);
    v_found constant text := forebay._token(backfill_token_v1.jobs, v_made::text, jsonb_build_array(
        backfill_token_v1.kind, forebay._backfill_options(backfill_token_v1.kind, backfill_token_v1.options), backfill_token_v1.digest));
begin
    -- A backfill and its token are forgotten after 30 days.
    if v_found <> backfill_token_v1.token or v_made not between v_now - 29 * 86400000000 and v_now + 86400000000 then
        raise exception using errcode = 'JQ040',
            message = format('the jobs no longer match token %s: their token is now %s', quote_literal(left(backfill_token_v1.token, 60)), v_found),
            detail = jsonb_build_object('token', backfill_token_v1.token),
            hint = 'Nothing was enqueued. Do a new dry run; kind and options are part of the token, too.';
    end if;
    return v_found;
end
$$;
