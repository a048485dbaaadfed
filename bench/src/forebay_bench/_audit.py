"""The audit of a finished run: plain SQL over records that are independent of Forebay's tables.

- ``ledger.entry``: written by producers in the transaction that enqueued the job: the proof of its commit
- ``ledger.effect``: written by handlers in the transaction that completed their job; nothing unique in it
- ``ledger.account``: what the producers know of their transactions, from their memory
- ``ledger.note``: what handlers wrote to a file, which no rollback undoes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA: Final = """
create schema ledger;
create table ledger.entry (entry bigint primary key, effect_in_transaction boolean not null);
create table ledger.effect (entry bigint not null, job_id bigint not null);
create table ledger.account (entry bigint not null, outcome text not null);
create table ledger.note (entry bigint not null);
"""

#: Every settled end of every job; a batch that was settled as a whole is done.
_ENDS: Final = """
    select coalesce(l.job_id, l.seq) as job_id,
           case when s.offsets is null then 'd'
                else coalesce(s.outcomes[array_position(s.offsets, u.place::smallint)], 'd') end as outcome
    from forebay.settlement s
    join forebay.batch b on b.lease_id = s.lease_id and b.claim_no = s.claim_no
    cross join lateral unnest(b.seqs) with ordinality as u (seq, place)
    join forebay.log l on l.seq = u.seq
    where s.offsets is null or u.place = any (s.offsets)
"""

#: The query of each number of the audit.
AUDIT: Final[Mapping[str, str]] = {
    # Known to be committed, or in doubt and present.
    "counted": """
        select count(*) from ledger.account a left join ledger.entry e using (entry)
        where a.outcome = 'committed' or (a.outcome = 'in doubt' and e.entry is not null)""",
    # Committed, and gone from the database, or without the effect of its job.
    "lost": """
        select count(*) from ledger.account a left join ledger.entry e using (entry)
        where (a.outcome = 'committed' and e.entry is null)
           or (a.outcome <> 'rolled back' and e.effect_in_transaction
               and not exists (select from ledger.effect f where f.entry = e.entry))
           or (a.outcome <> 'rolled back' and not e.effect_in_transaction
               and not exists (select from ledger.note n where n.entry = e.entry))""",
    # Run, or present, although its transaction was rolled back.
    "phantom": """
        select count(*) from (
            select entry from ledger.note union select entry from ledger.effect
            union select entry from ledger.account join ledger.entry using (entry) where outcome = 'rolled back'
        ) seen
        where not exists (
            select from ledger.entry e join ledger.account a using (entry)
            where e.entry = seen.entry and a.outcome <> 'rolled back')""",
    # Ended for good more than once.
    "settled_twice": f"""
        select count(*) from (
            select from ({_ENDS}) ends where outcome in ('d', 'c', 'x') group by job_id having count(*) > 1) x""",
    # Written more than once by the transaction that completes the job.
    "applied_twice": """
        select count(*) from (select from ledger.effect group by entry having count(*) > 1) x""",
    # Run again after a kill, outside transactions: allowed, and counted.
    "run_again": """
        select count(*) from (
            select from ledger.note n join ledger.entry e using (entry)
            where not e.effect_in_transaction group by n.entry having count(*) > 1) x""",
    # Given to another worker after the lease of the first was lost.
    "sent_back": f"select count(*) from ({_ENDS}) ends where outcome = 'l'",
    "dead": "select count(*) from forebay.dead_letter",
    "in_doubt": "select count(*) from ledger.account where outcome = 'in doubt'",
    "rolled_back": "select count(*) from ledger.account where outcome = 'rolled back'",
}


def draw_up(
    conn: psycopg.Connection[Any], account: Mapping[str, Sequence[int]], notes: Iterable[int]
) -> dict[str, int]:
    """Store the records of producers and handlers, and return every number of the audit.

    Args:
        conn: to the database of the run.
        account: entries by outcome: committed, rolled back, in doubt.
        notes: an entry for each time that a handler finished.
    """
    with conn.cursor() as cursor:
        with cursor.copy("copy ledger.account from stdin") as copy:
            for outcome, entries in account.items():
                for entry in entries:
                    copy.write_row((entry, outcome))
        with cursor.copy("copy ledger.note from stdin") as copy:
            for entry in notes:
                copy.write_row((entry,))
    conn.execute("analyze ledger.account, ledger.note, ledger.entry, ledger.effect")
    columns = ",\n".join(f"({query})" for query in AUDIT.values())
    row = conn.execute(f"select {columns}").fetchone()
    assert row is not None
    return dict(zip(AUDIT, row, strict=True))
