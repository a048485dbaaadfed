"""A producer needs no library: it calls a SQL function, from any language or from a trigger.

Start it, and in another terminal its worker:

    python sql_producer.py
    forebay worker sql_producer:app
"""

import psycopg

import forebay

app = forebay.App()


@app.job(queue="articles")
def reindex(article_id: int) -> None:
    print(f"article {article_id} indexed")


SCHEMA = """
create table if not exists article (
    article_id bigint generated always as identity primary key, body text);

create or replace function enqueue_reindex() returns trigger language plpgsql as $$
begin
    perform forebay.enqueue(
        'reindex', jsonb_build_object('article_id', new.article_id), queue => 'articles');
    return null;
end $$;

create or replace trigger reindex after insert or update on article
for each row execute function enqueue_reindex();
"""

if __name__ == "__main__":
    with psycopg.connect(app.dsn, autocommit=True) as conn:
        conn.execute(SCHEMA)
        # Every write of an article enqueues a job in the same transaction, through this trigger.
        conn.execute("insert into article (body) values ('one'), ('two')")
        print("wrote 2 articles, each with a job")
        conn.execute("begin")
        conn.execute("insert into article (body) values ('three')")
        conn.execute("rollback")
        print("rolled back an article, and its job")

        # One statement, a job for each row of a query.
        conn.execute(
            """
            select forebay.enqueue_many(
                'reindex', array_agg(jsonb_build_object('article_id', article_id)),
                    queue => 'articles')
            from article
            """
        )
        print("enqueued a job for each article")
