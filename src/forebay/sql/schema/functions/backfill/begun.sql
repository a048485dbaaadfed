-- grant: producer, worker

-- The backfill that this login has begun with a token, in this role: its number and its jobs; nulls
-- if there is none.
--
-- Errors: JQ001 bad options, JQ040 it was begun with another kind or other options.
create function forebay.backfill_begun_v1(kind text, options jsonb, token text, out backfill_id bigint, out jobs bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    b forebay.backfill;
begin
    select i.* into b from forebay.backfill i where i.token = backfill_begun_v1.token;
    if not found then
        return;
    elsif (b.kind, b.options, b.made_by, b.made_as) is distinct from
          (backfill_begun_v1.kind, forebay._backfill_options(backfill_begun_v1.kind, backfill_begun_v1.options), session_user, forebay._role_in_use()) then
        raise exception using errcode = 'JQ040',
            message = format('token %s was used for another backfill', quote_literal(left(backfill_begun_v1.token, 60))),
            detail = jsonb_build_object('token', backfill_begun_v1.token), hint = 'Nothing was enqueued. Do a new dry run.';
    end if;
    backfill_id := b.backfill_id;
    jobs := b.jobs;
end
$$;
