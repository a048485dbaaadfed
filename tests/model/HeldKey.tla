------------------------------ MODULE HeldKey ------------------------------
\* The life of one ordering key for one group, with dead letters that hold it and commits that a crash takes back.
\*
\* Jobs 1..Jobs are committed in this order. A redriven job j is j + Jobs: it has the place of j. A claim commits asynchronously: a crash
\* may lose it, with all that was committed after the last durable commit. All other acts are durable.
\* See "Held keys" in docs/design/ordering.md.
EXTENDS Naturals, Sequences

CONSTANTS
    Jobs,     \* how many are enqueued
    Workers,
    Returns,  \* how many retries and revocations there are
    Crashes,
    Mutant    \* the guard that is left out; empty for none

VARIABLES
    db,       \* what sessions see
    durable,  \* what a crash leaves
    has,      \* what each worker believes to have: a claim's number and its jobs
    told,     \* the jobs whose end was confirmed to a worker
    returns, crashes

vars == <<db, durable, has, told, returns, crashes>>

Nobody == 0
Recheck == 0  \* a row of the log without a job
Place(j) == IF j > Jobs THEN j - Jobs ELSE j
Behind(s) == IF s = <<>> THEN <<>> ELSE Tail(s)
Min(a, b) == IF a < b THEN a ELSE b

Nothing == [claim |-> 0, jobs |-> <<>>]

Init ==
    /\ db = [log |-> <<>>,      \* rows: jobs and recheck rows
             read |-> 0,        \* the cursor: so many rows are behind it
             parked |-> <<>>,   \* passed by the cursor, not taken
             requeued |-> <<>>, \* released behind a job that continues
             claim |-> 0, holder |-> Nobody, open |-> <<>>,  \* the key run
             head |-> 0,        \* the job that must come first, in a new row
             held |-> 0,        \* the job of the dead letter that holds the key
             redriven |-> 0,    \* the job that it was redriven as
             next |-> 1,        \* the next job to be enqueued
             ended |-> <<>>]    \* final ends, in order
    /\ durable = db
    /\ has = [w \in Workers |-> Nothing]
    /\ told = {}
    /\ returns = 0
    /\ crashes = 0

Durably(new) == db' = new /\ durable' = new

Enqueue ==
    /\ db.next <= Jobs
    /\ Durably([db EXCEPT !.log = Append(@, db.next), !.next = @ + 1])
    /\ UNCHANGED <<has, told, returns, crashes>>

\* The job that must come first, and has to be among the rows that the claim reads.
First(s) ==
    IF s.held # 0 /\ Mutant # "claims do not ask for held keys"
    THEN IF s.redriven # 0 THEN s.redriven ELSE s.held
    ELSE s.head

Claim(w) ==
    LET rows  == SubSeq(db.log, db.read + 1, Len(db.log))
        jobs  == SelectSeq(rows, LAMBDA r : r # Recheck)
        first == First(db)
        isMet == \E i \in 1..Len(jobs) : jobs[i] = first
        new   == SelectSeq(jobs, LAMBDA j : j # first)
        mayTake == db.open = <<>> /\ (first = 0 \/ isMet)
        number == CHOOSE n \in 1..5 : n \notin ({db.claim, durable.claim} \cup {has[v].claim : v \in Workers})
        queue == (IF isMet THEN <<first>> ELSE <<>>) \o db.requeued \o db.parked \o new
    IN  /\ rows # <<>>
        /\ has[w] = Nothing
        /\ \E n \in 1..2 :
            LET k     == Min(n, Len(queue))
                taken == SubSeq(queue, 1, k)
                left  == SubSeq(queue, k + 1, Len(queue))
            IN  IF mayTake /\ k > 0
                THEN /\ db' = [db EXCEPT !.read = Len(db.log), !.requeued = <<>>, !.parked = left, !.claim = number,
                                         !.holder = w, !.open = taken, !.head = 0,
                                         !.held = IF isMet /\ first = db.redriven /\ Mutant # "a claim does not end the hold" THEN 0 ELSE @,
                                         !.redriven = IF isMet /\ first = db.redriven /\ Mutant # "a claim does not end the hold" THEN 0 ELSE @]
                     /\ has' = [has EXCEPT ![w] = [claim |-> number, jobs |-> taken]]
                ELSE /\ db' = [db EXCEPT !.read = Len(db.log), !.parked = @ \o new]
                     /\ has' = has
        /\ UNCHANGED <<durable, told, returns, crashes>>

Holds(w) == has[w].jobs # <<>> /\ db.claim = has[w].claim /\ db.holder = w /\ db.open # <<>>

\* A worker whose claim was lost or revoked learns it when it settles.
Refused(w) ==
    /\ has[w] # Nothing /\ ~Holds(w)
    /\ has' = [has EXCEPT ![w] = Nothing]
    /\ UNCHANGED <<db, durable, told, returns, crashes>>

Announced(t) == LET s == IF t.open = <<>> THEN [t EXCEPT !.claim = 0] ELSE t IN IF s.open = <<>> /\ (s.parked # <<>> \/ s.requeued # <<>>) THEN [s EXCEPT !.log = Append(@, Recheck)] ELSE s

Settled(new) ==
    /\ db' = new
    /\ durable' = IF Mutant = "settlements are not durable" THEN durable ELSE new

Done(w) ==
    /\ Holds(w)
    /\ LET s == [db EXCEPT !.open = Tail(@), !.ended = Append(@, Head(db.open))]
       IN  Settled(IF Mutant = "no recheck row after the last job" THEN s ELSE Announced(s))
    /\ has' = [has EXCEPT ![w] = IF Len(@.jobs) = 1 THEN Nothing ELSE [@ EXCEPT !.jobs = Tail(@)]]
    /\ told' = told \cup {Head(db.open)}
    /\ UNCHANGED <<returns, crashes>>

\* The job continues in a new row; those behind it are released.
Retry(w) ==
    /\ Holds(w) /\ returns < Returns
    /\ returns' = returns + 1
    /\ Settled([db EXCEPT !.open = <<>>, !.claim = 0, !.requeued = Tail(db.open) \o @, !.head = Head(db.open), !.log = Append(@, Head(db.open))])
    /\ has' = [has EXCEPT ![w] = Nothing]
    /\ UNCHANGED <<told, crashes>>

\* A job that was redriven does not die again: it would begin the same anew.
Die(w) ==
    /\ Holds(w) /\ Head(db.open) <= Jobs
    /\ Settled([db EXCEPT !.open = <<>>, !.claim = 0, !.held = Head(db.open), !.ended = Append(@, Head(db.open)),
                          !.requeued = IF Mutant = "jobs behind the dead one are lost" THEN @ ELSE Tail(db.open) \o @])
    /\ has' = [has EXCEPT ![w] = Nothing]
    /\ told' = told \cup {Head(db.open)}
    /\ UNCHANGED <<returns, crashes>>

Redrive ==
    /\ db.held # 0 /\ db.redriven = 0
    /\ LET j == db.held + Jobs
       IN  Durably([db EXCEPT !.log = Append(@, j),
                              !.redriven = IF Mutant = "a redrive ends the hold" THEN 0 ELSE j,
                              !.held = IF Mutant = "a redrive ends the hold" THEN 0 ELSE @])
    /\ UNCHANGED <<has, told, returns, crashes>>

Skip ==
    /\ db.held # 0 /\ db.redriven = 0
    /\ Durably([db EXCEPT !.held = 0, !.log = IF Mutant = "a skip writes no recheck row" THEN @ ELSE Append(@, Recheck)])
    /\ UNCHANGED <<has, told, returns, crashes>>

\* The holder is given up: its first job comes back in a new row.
Revoke ==
    /\ db.open # <<>> /\ returns < Returns
    /\ returns' = returns + 1
    /\ Durably([db EXCEPT !.open = <<>>, !.claim = 0, !.requeued = Tail(db.open) \o @, !.head = Head(db.open), !.log = Append(@, Head(db.open))])
    /\ UNCHANGED <<has, told, crashes>>

Crash ==
    /\ crashes < Crashes
    /\ db' = durable
    /\ crashes' = crashes + 1
    /\ UNCHANGED <<durable, has, told, returns>>

Next ==
    \/ Enqueue \/ Redrive \/ Skip \/ Revoke \/ Crash
    \/ \E w \in Workers : Claim(w) \/ Refused(w) \/ Done(w) \/ Retry(w) \/ Die(w)

Spec == Init /\ [][Next]_vars

\* The order of the key: final ends come in the order of places; only a redriven job shares one, with the job that died.
InOrder ==
    \A i \in 1..Len(db.ended) - 1 :
        \/ Place(db.ended[i]) < Place(db.ended[i + 1])
        \/ db.ended[i + 1] = db.ended[i] + Jobs

\* A held key stands still.
StandsStill == db.held # 0 => db.ended[Len(db.ended)] = db.held

\* Nothing is forgotten: of a key that nobody has and nothing holds, jobs wait only while a row is unread that a claim will act on.
NothingForgotten ==
    (db.open = <<>> /\ (db.parked # <<>> \/ db.requeued # <<>> \/ db.head # 0 \/ db.redriven # 0)
        /\ (db.held = 0 \/ db.redriven # 0)) => db.read < Len(db.log)

\* Each job is in one place.
Everything == {db.ended[i] : i \in 1..Len(db.ended)} \cup {db.open[i] : i \in 1..Len(db.open)}
    \cup {db.parked[i] : i \in 1..Len(db.parked)} \cup {db.requeued[i] : i \in 1..Len(db.requeued)}
    \cup {db.log[i] : i \in db.read + 1..Len(db.log)}
NothingLost == \A j \in 1..db.next - 1 : j \in Everything
NothingUntold == told \subseteq {db.ended[i] : i \in 1..Len(db.ended)}
OnceFinal == \A i, k \in 1..Len(db.ended) : i # k => db.ended[i] # db.ended[k]
=============================================================================
