-- The next version of a protocol function, beside the present one.

do $$
begin
    execute replace(
        pg_get_functiondef('forebay.claim_v1(bigint, bigint, bigint, bigint, bigint, integer)'::regprocedure),
        'forebay.claim_v1(', 'forebay.claim_v2(');
    execute replace(pg_get_functiondef('forebay._grant()'::regprocedure), '''claim_v1''', '''claim_v1'', ''claim_v2''');
end
$$;
