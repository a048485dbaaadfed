"""A producer needs no library: it calls a SQL function, from any language or from a trigger."""

import os

import psycopg

import forebay

app = forebay.App()
indexed: list[int] = []


@app.job(queue="index")
def reindex(document_id: int) -> None:
    indexed.append(document_id)


with psycopg.connect(os.environ["FOREBAY_DATABASE_URL"], autocommit=True) as conn:
    conn.execute(
        """
        create table document (document_id bigint generated always as identity, body text);

        create function enqueue_reindex() returns trigger language plpgsql as $$
        begin
            perform forebay.enqueue(
                'reindex', jsonb_build_object('document_id', new.document_id), queue => 'index');
            return null;
        end $$;

        create trigger reindex after insert or update on document
        for each row execute function enqueue_reindex();
        """
    )
    # Every write of a document enqueues a job in the same transaction, through this trigger.
    conn.execute("insert into document (body) values ('one'), ('two')")
    conn.execute("begin")
    conn.execute("insert into document (body) values ('three')")
    conn.execute("rollback")

    # One statement, a job for each row of a query.
    conn.execute(
        """
        select forebay.enqueue_many(
            'reindex', array_agg(jsonb_build_object('document_id', document_id)), queue => 'index')
        from document
        """
    )

app.run_worker(until_idle=True)
assert sorted(indexed) == [1, 1, 2, 2]
