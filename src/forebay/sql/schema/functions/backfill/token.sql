-- grant: producer, worker

-- Compute the token of a set of jobs: their number, and a digest of kind, options and rows. With
-- `token`, refuse any other set.
--
-- Errors: JQ001 bad options, JQ040 another token.
create function forebay.backfill_token_v1(kind text, options jsonb, jobs bigint, digest numeric, token text default null)
returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found constant text := forebay._token(backfill_token_v1.jobs, jsonb_build_array(
        backfill_token_v1.kind, forebay._backfill_options(backfill_token_v1.kind, backfill_token_v1.options), backfill_token_v1.digest));
begin
    if v_found <> backfill_token_v1.token then
        raise exception using errcode = 'JQ040',
            message = format('the jobs no longer match token %s: their token is now %s', quote_literal(left(backfill_token_v1.token, 60)), v_found),
            detail = jsonb_build_object('token', backfill_token_v1.token),
            hint = 'Nothing was enqueued. Do a new dry run; kind and options are part of the token, too.';
    end if;
    return v_found;
end
$$;
