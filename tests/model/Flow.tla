------------------------------- MODULE Flow -------------------------------
\* What wakes a flow: a signal, a timeout or its children, in transactions that commit in any order.
\*
\* A transaction writes when it begins, with the snapshot of then, and others see it when it commits. Promotion is one transaction: it visits
\* each committed wake row once, and sees what is committed then. An attempt runs under a lease; if its worker dies, the job comes back.
\* A crash of the server loses what was not committed, and the answers to commits. See "Woken once" in docs/design/flows.md.
EXTENDS Naturals, FiniteSets

CONSTANTS
    Children, \* how many children the flow gathers; 0: it waits for a signal
    Signals,  \* how many producers send the signal
    Deaths,   \* how often an attempt dies, in any place
    Mutant    \* the guard that is left out; empty for none

VARIABLES
    job,      \* ready, running, parked or done: the live row of the job
    rows,     \* how many live rows the job has
    waiter,   \* whether the wait is committed
    parking,  \* none or open: the settlement that parks
    signal,   \* 0 or 1: a signal that waits to be taken
    sends,    \* for each producer: none, open, sent or refused
    taken,    \* signals that became a checkpoint
    result,   \* whether the checkpoint that ends the wait is there
    child,    \* for each child: run, open or ended
    counted,  \* ends that promotions have added up
    wakes,    \* committed wake rows that no promotion has visited: pairs of what and number
    deaths

vars == <<job, rows, waiter, parking, signal, sends, taken, result, child, counted, wakes, deaths>>

Kids == 1..Children
Producers == 1..Signals

Init ==
    /\ job = "ready" /\ rows = 1
    /\ waiter = FALSE /\ parking = "none"
    /\ signal = 0 /\ sends = [p \in Producers |-> "none"] /\ taken = 0
    /\ result = FALSE
    /\ child = [c \in Kids |-> "run"]
    /\ counted = 0
    /\ wakes = {}
    /\ deaths = 0

\* A wake row has a number of its own, so that two of them are two.
Wake(what, n) == wakes' = wakes \cup {[what |-> what, n |-> n]}

Ended == {c \in Kids : child[c] = "ended"}

Start ==
    /\ job = "ready" /\ job' = "running"
    /\ UNCHANGED <<rows, waiter, parking, signal, sends, taken, result, child, counted, wakes, deaths>>

\* The handler asks for the result: it is recorded, or all children have ended, and the flow is done; else it parks.
Finish ==
    /\ job = "running" /\ parking = "none"
    /\ IF Children = 0 THEN result ELSE Cardinality(Ended) = Children
    /\ job' = "done" /\ rows' = rows - 1
    /\ UNCHANGED <<waiter, parking, signal, sends, taken, result, child, counted, wakes, deaths>>

Park ==
    /\ job = "running" /\ parking = "none"
    /\ IF Children = 0 THEN ~result ELSE Cardinality(Ended) < Children
    /\ parking' = "open"
    /\ UNCHANGED <<job, rows, waiter, signal, sends, taken, result, child, counted, wakes, deaths>>

Parked ==
    /\ parking = "open" /\ parking' = "none"
    /\ job' = "parked"
    /\ waiter' = (Children = 0)
    /\ IF Mutant = "no wake row of the flow" THEN wakes' = wakes ELSE Wake("flow", 0)
    /\ UNCHANGED <<rows, signal, sends, taken, result, child, counted, deaths>>

\* The worker dies, or the server crashes: what is open is rolled back, and the job comes back.
Die ==
    /\ job = "running" /\ deaths < Deaths
    /\ deaths' = deaths + 1 /\ job' = "ready" /\ parking' = "none"
    /\ UNCHANGED <<rows, waiter, signal, sends, taken, result, child, counted, wakes>>

\* The time of the wait is over: promotion moves the row. The attempt ends the wait: it takes the signal, or records the timeout.
Timeout ==
    /\ job = "parked" /\ Children = 0 /\ job' = "ready"
    /\ UNCHANGED <<rows, waiter, parking, signal, sends, taken, result, child, counted, wakes, deaths>>

EndWait ==
    /\ job = "running" /\ parking = "none" /\ waiter /\ ~result
    /\ waiter' = FALSE /\ result' = TRUE
    /\ taken' = taken + signal /\ signal' = 0
    /\ UNCHANGED <<job, rows, parking, sends, child, counted, wakes, deaths>>

\* A second transaction with the pair waits for the first, so at most one is open.
Send(p) ==
    /\ Children = 0 /\ sends[p] = "none"
    /\ \A q \in Producers : sends[q] # "open"
    /\ sends' = [sends EXCEPT ![p] = IF signal = 1 THEN "refused" ELSE "open"]
    /\ UNCHANGED <<job, rows, waiter, parking, signal, taken, result, child, counted, wakes, deaths>>

Sent(p) ==
    /\ sends[p] = "open" /\ sends' = [sends EXCEPT ![p] = "sent"]
    /\ signal' = 1
    /\ IF Mutant = "no wake row of the signal" THEN wakes' = wakes ELSE Wake("signal", p)
    /\ UNCHANGED <<job, rows, waiter, parking, taken, result, child, counted, deaths>>

Unsent(p) ==
    /\ sends[p] = "open" /\ sends' = [sends EXCEPT ![p] = "refused"]
    /\ UNCHANGED <<job, rows, waiter, parking, signal, taken, result, child, counted, wakes, deaths>>

ChildEnds(c) ==
    /\ child[c] = "run" /\ child' = [child EXCEPT ![c] = "open"]
    /\ UNCHANGED <<job, rows, waiter, parking, signal, sends, taken, result, counted, wakes, deaths>>

ChildEnded(c) ==
    /\ child[c] = "open" /\ child' = [child EXCEPT ![c] = "ended"]
    /\ Wake("child", c)
    /\ UNCHANGED <<job, rows, waiter, parking, signal, sends, taken, result, counted, deaths>>

\* One transaction: it visits some committed wake rows, once, and decides by what is committed.
Promote ==
    \E some \in SUBSET wakes :
        LET sum    == counted + Cardinality({w \in some : w.what = "child"})
            exact  == Cardinality(Ended)
            counts == \/ \E w \in some : w.what = "flow"
                      \/ sum >= Children
            total  == IF counts THEN exact ELSE sum
            isPart == Mutant = "a running attempt is woken too"
            comes  == /\ Children = 0 /\ waiter /\ signal = 1
                      /\ job = "parked" \/ isPart
            full   == Children > 0 /\ total >= Children /\ (job = "parked" \/ isPart)
        IN  /\ some # {}
            /\ wakes' = wakes \ some
            /\ counted' = IF Children > 0 THEN total ELSE 0
            /\ IF comes
               THEN /\ waiter' = FALSE /\ signal' = 0 /\ taken' = taken + 1 /\ result' = TRUE
               ELSE UNCHANGED <<waiter, signal, taken, result>>
            /\ IF comes \/ full
               THEN /\ job' = "ready" /\ rows' = IF job = "parked" THEN rows ELSE rows + 1
               ELSE UNCHANGED <<job, rows>>
            /\ UNCHANGED <<parking, sends, child, deaths>>

Next ==
    \/ Start \/ Finish \/ Park \/ Parked \/ Die \/ Timeout \/ EndWait \/ Promote
    \/ \E p \in Producers : Send(p) \/ Sent(p) \/ Unsent(p)
    \/ \E c \in Kids : ChildEnds(c) \/ ChildEnded(c)

Spec == Init /\ [][Next]_vars

\* The job has one live row, until it is done.
OneRow == rows = (IF job = "done" THEN 0 ELSE 1)

\* While a flow sleeps though what it waits for is there, a wake row will be visited.
NothingForgotten ==
    job = "parked" /\ (IF Children = 0 THEN waiter /\ signal = 1 ELSE Cardinality(Ended) = Children) => wakes # {}

\* A signal that was sent waits, or became the checkpoint of one wait.
NoSignalLost == Cardinality({p \in Producers : sends[p] = "sent"}) = signal + taken

\* The sum of promotions, with what they have not visited, is never too small.
NeverTooSmall == Children > 0 => counted + Cardinality({w \in wakes : w.what = "child"}) >= Cardinality(Ended)

\* A flow is done only with its result.
DoneWithResult == job = "done" => (IF Children = 0 THEN result ELSE Cardinality(Ended) = Children)

=============================================================================
