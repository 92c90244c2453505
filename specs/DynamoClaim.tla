---- MODULE DynamoClaim ----
(***************************************************************************)
(* The claim over two records of DynamoDB.  A taken task is in no index:   *)
(* a lease record of the process names it before it is taken, and the      *)
(* sweep finds that record by an index that lags: it may look late, and it *)
(* reads the record itself before it acts.  Names are ids of tasks: here   *)
(* of one task; the others stand behind Rewrite.  A copy of a request may  *)
(* land until Late after it was sent: then its signature is too old.       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Transitions

CONSTANTS
    Processes,
    Tokens,       \* lease tokens 1..n
    Versions,     \* most versions that a process writes of its record
    LastTime,
    LeaseTime,
    Late,
    Slow,         \* what may go wrong: copies of "claims" and of "records", a slow "tidying", "deaths"
    Broken

VARIABLES
    now,
    task,         \* [status, token, until, ended]
    record,       \* of each process and generation: the lease record in the table
    process,      \* what each process remembers
    used,         \* tokens that were given out
    net,          \* copies of requests that may still land
    looked        \* what the sweep read of a record before it tidies it

vars == <<now, task, record, process, used, net, looked>>

No == 0
Never == LastTime + LeaseTime + Late + 1
Generations == {1, 2}
Records == Processes \X Generations
Absent == [here |-> FALSE, names |-> FALSE, due |-> Never, held |-> 0, number |-> 0, by |-> "nobody"]
Fresh == [phase |-> "idle", token |-> No, repeated |-> FALSE, held |-> {}, number |-> 0, due |-> Never]
Nothing == [record |-> "none"]

Init ==
    /\ now = 0
    /\ task = [status |-> "PENDING", token |-> No, until |-> 0, ended |-> No]
    /\ record = [r \in Records |-> Absent]
    /\ process = [p \in Processes |-> [generation |-> 1, memory |-> Fresh]]
    /\ used = 0
    /\ net = {}
    /\ looked = Nothing

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Min(S) == CHOOSE x \in S : \A y \in S : y >= x
Untils(holdings) == {h[2] : h \in holdings}
Running(holdings) == {h \in holdings : h[2] > now}


-----------------------------------------------------------------------------
\* A process writes the next version of its record, or the first of a new one.  The sweep has the old one once a
\* lease has run out; so it has once the request of a claim was repeated, because a copy may still land.
Write(p, held, until, next) ==
    LET me == process[p].memory
        expired == \E h \in me.held : h[2] <= now
        left == me.repeated /\ Broken # "a copy is not expected"
        generation == IF expired \/ left THEN process[p].generation + 1 ELSE process[p].generation
        kept == IF left THEN {} ELSE IF expired THEN Running(me.held) ELSE me.held
        all == kept \cup held
        version == [here |-> TRUE, names |-> all # {}, due |-> until, held |-> Max({until} \cup Untils(all)),
                    number |-> me.number + 1, by |-> <<p, me.number + 1>>]
    IN  /\ generation \in Generations
        /\ me.number < Versions
        /\ record' = [record EXCEPT ![<<p, generation>>] = version]
        /\ net' = IF "records" \in Slow
                  THEN net \cup {[kind |-> "name", at |-> <<p, generation>>, version |-> version, sent |-> now]}
                  ELSE net
        /\ process' = [process EXCEPT ![p] =
                [generation |-> generation,
                 memory |-> [next EXCEPT !.held = kept \cup held, !.number = me.number + 1, !.due = until,
                                         !.repeated = FALSE]]]

\* The task is named for a new token before it is claimed.
Name(p) ==
    LET me == process[p].memory
        k == used + 1
    IN  /\ me.phase = "idle"
        /\ k \in Tokens
        /\ used' = k
        /\ IF Broken = "claimed before it is named"
           THEN /\ process' = [process EXCEPT ![p].memory.phase = "named", ![p].memory.token = k,
                                              ![p].memory.due = now + LeaseTime]
                /\ UNCHANGED <<record, net>>
           ELSE Write(p, {<<k, now + LeaseTime>>}, now + LeaseTime, [me EXCEPT !.phase = "named", !.token = k])
        /\ UNCHANGED <<now, task, looked>>

\* The record is written for another task.
Rewrite(p) ==
    /\ process[p].memory.phase = "idle"
    /\ Write(p, {}, now + LeaseTime, process[p].memory)
    /\ UNCHANGED <<now, task, used, looked>>

AskClaim(p) ==
    LET me == process[p].memory
    IN  /\ me.phase = "named"
        /\ now < me.due
        /\ \E copies \in IF "claims" \in Slow THEN {1, 2} ELSE {1} :
            /\ net' = net \cup {[kind |-> "claim", token |-> me.token, until |-> now + LeaseTime, sent |-> now,
                                 copies |-> copies]}
            /\ process' = [process EXCEPT ![p].memory.phase = "asked", ![p].memory.repeated = (copies = 2)]
        /\ UNCHANGED <<now, task, record, used, looked>>

\* No answer: the holding stays named until its lease ends, and then the record is left to the sweep.
GiveUp(p) ==
    /\ process[p].memory.phase = "asked"
    /\ process' = [process EXCEPT ![p].memory.phase = "idle"]
    /\ UNCHANGED <<now, task, record, used, net, looked>>

\* The process no longer holds the task for its token.
Forgotten(me) == [me EXCEPT !.phase = "idle", !.held = {h \in @ : h[1] # me.token}]

\* A settlement is conditional on the token, so its copies change nothing.
Settle(p, verb, to) ==
    LET me == process[p].memory
    IN  /\ me.phase = "runs"
        /\ IF task.token = me.token
           THEN task' = [task EXCEPT !.status = Follow(verb, @, to), !.token = No, !.ended = me.token]
           ELSE UNCHANGED task
        /\ process' = [process EXCEPT ![p].memory = Forgotten(me)]
        /\ UNCHANGED <<now, record, used, net, looked>>

Release(p) == Settle(p, "release", "PENDING")
Complete(p) == Settle(p, "complete", "SUCCESS")

Die(p) ==
    /\ "deaths" \in Slow
    /\ process[p].memory # Fresh
    /\ process[p].generation + 1 \in Generations
    /\ process' = [process EXCEPT ![p] = [generation |-> @.generation + 1, memory |-> Fresh]]
    /\ UNCHANGED <<now, task, record, used, net, looked>>

-----------------------------------------------------------------------------
CanLand(m) == now <= m.sent + Late

\* A claim reaches the table, and is answered or not.
LandClaim(m) ==
    LET takes == task.status = "PENDING" /\ task.ended # m.token
        left == IF m.copies = 1 THEN {} ELSE {[m EXCEPT !.copies = 1]}
    IN  /\ m.kind = "claim"
        /\ CanLand(m)
        /\ net' = (net \ {m}) \cup left
        /\ IF takes
           THEN task' = [task EXCEPT !.status = Follow("claim", @, "TAKEN"), !.token = m.token, !.until = m.until]
           ELSE UNCHANGED task
        /\ \/ UNCHANGED process
           \/ \E p \in Processes :
                LET me == process[p].memory
                IN  /\ me.phase = "asked"
                    /\ me.token = m.token
                    /\ process' = [process EXCEPT ![p].memory =
                            IF takes \/ task.token = m.token THEN [me EXCEPT !.phase = "runs"]
                            ELSE Forgotten(me)]
        /\ UNCHANGED <<now, record, used, looked>>

\* A late copy of a version of a lease record.
LandName(m) ==
    /\ m.kind = "name"
    /\ CanLand(m)
    /\ record[m.at].number < m.version.number \/ Broken = "versions without a number"
    /\ record' = [record EXCEPT ![m.at] = m.version]
    /\ UNCHANGED <<now, task, process, used, net, looked>>

\* When to look again at a record under which nothing is due; Never if it can be deleted.
NextCheck(r) ==
    LET ends == IF task.status = "TAKEN" /\ record[r].names THEN {task.until} ELSE {}
        late == IF Broken = "deleted once nothing is held" THEN {} ELSE {record[r].held + Late + 1}
        moments == {m \in ends \cup {record[r].held} \cup late : m > now}
    IN  IF moments = {} THEN Never ELSE Min(moments)

Recover(r) ==
    /\ record[r].here
    /\ record[r].names
    /\ record[r].due <= now
    /\ task.status = "TAKEN"
    /\ task.until <= now
    /\ task' = [task EXCEPT !.status = Follow("recover", @, "PENDING"), !.token = No, !.ended = task.token]
    /\ UNCHANGED <<now, record, process, used, net, looked>>

\* The sweep deletes a record, or writes the one that it read, with another time.
Tidied(r, seen, next) ==
    IF record[r].by = seen.by \/ Broken = "tidied without a look at the version"
    THEN record' = [record EXCEPT ![r] =
            IF next = Never THEN Absent ELSE [seen EXCEPT !.due = next, !.by = <<"sweep", next>>]]
    ELSE UNCHANGED record

\* Nothing is due under the record that the sweep read.
Look(r) ==
    /\ looked = Nothing
    /\ record[r].here
    /\ record[r].due <= now
    /\ ~(record[r].names /\ task.status = "TAKEN" /\ task.until <= now)
    /\ IF "tidying" \in Slow
       THEN /\ looked' = [record |-> r, seen |-> record[r], next |-> NextCheck(r)]
            /\ UNCHANGED record
       ELSE /\ Tidied(r, record[r], NextCheck(r))
            /\ UNCHANGED looked
    /\ UNCHANGED <<now, task, process, used, net>>

Tidy ==
    /\ looked # Nothing
    /\ Tidied(looked.record, looked.seen, looked.next)
    /\ looked' = Nothing
    /\ UNCHANGED <<now, task, process, used, net>>

Tick ==
    /\ now < LastTime
    /\ now' = now + 1
    \* What can no longer land is forgotten.
    /\ net' = {m \in net : now + 1 <= m.sent + Late}
    /\ UNCHANGED <<task, record, process, used, looked>>

Next ==
    \/ \E p \in Processes : \/ Name(p) \/ Rewrite(p) \/ AskClaim(p) \/ GiveUp(p)
                            \/ Release(p) \/ Complete(p) \/ Die(p)
    \/ \E m \in net : LandClaim(m) \/ LandName(m)
    \/ \E r \in Records : Recover(r) \/ Look(r)
    \/ Tidy
    \/ Tick

Symmetry == Permutations(Processes)
Spec == Init /\ [][Next]_vars

\* A held task can be found once its lease has run out, so it is not held for ever.
AHeldTaskIsNamed == task.status = "TAKEN" => \E r \in Records : record[r].here /\ record[r].names
HeldUnderALease == (task.status = "TAKEN") = (task.token # No)
====
