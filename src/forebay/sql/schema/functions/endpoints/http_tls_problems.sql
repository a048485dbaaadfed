-- What is wrong with the certificate of an HTTP endpoint's client and with pinned keys: the rules of src/forebay/sinks/_http_tls.py. The
-- configuration is without nulls. What the files contain is known to the deliverers only.
create function forebay._http_tls_problems(c jsonb) returns table (name text, problem text, hint text)
language sql immutable
as $$
    select p.name, p.problem, p.hint
    from (
        select f.name, 'is not the absolute path of a file', 'Write /FOLDER/FILE.pem. The setting endpoint_folders of the deliverers lists the folder.',
               c ? f.name and (jsonb_typeof(c -> f.name) = 'string' and c ->> f.name ~ E'^/[^{control}]*$') is not true
        from (values ('cert_file'), ('key_file')) f (name)
        union all
        select 'key_passphrase', 'is not a reference to a secret', 'Write "env:NAME" or "file:/path".',
               c ? 'key_passphrase' and not forebay._is_reference(c -> 'key_passphrase')
        union all
        select f.name, 'has no meaning without cert_file', 'Give cert_file, the path of the certificate.', c ? f.name and not c ? 'cert_file'
        from (values ('key_file'), ('key_passphrase')) f (name)
        union all
        select 'pinned', 'is not a list of 1 to 10 hashes of public keys', 'Write "sha256//" and the SHA-256 in Base64, as curl --pinnedpubkey has it.',
               c ? 'pinned' and (jsonb_typeof(c -> 'pinned') = 'array' and jsonb_array_length(c -> 'pinned') between 1 and 10
                                 and not jsonb_path_exists(c -> 'pinned', 'strict $[*] ? (@.type() != "string" || !(@ like_regex "^sha256//[A-Za-z0-9+/]{43}=$"))')) is not true
        union all
        select f.name, 'has no meaning for an address that begins with http://', 'Write https:// in url.', c ? f.name and c ->> 'url' ~* '^http:'
        from (values ('cert_file'), ('pinned')) f (name))
        p (name, problem, hint, is_wrong)
    where p.is_wrong
$$;
