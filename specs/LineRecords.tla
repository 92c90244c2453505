---- MODULE LineRecords ----
(***************************************************************************)
(* One line of a group on DynamoDB: a producer looks at its record,        *)
(* announces it, and puts; claimers close the line whenever they like;     *)
(* upkeep looks into the lines of a closing that is due.  Whoever dies     *)
(* leaves what it sent: that lands within Landing, or its sender lives     *)
(* until it has noticed.  The index shows a put within Lag.  Times are     *)
(* ages and rests in seconds, so there is no clock.  The first producer    *)
(* puts the task; the others only announce, as their tasks could only help.*)
(* So does a claimer that looks once more into a line that it closed.      *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
    Producers,
    Putter,       \* the producer of the task
    Claimers,
    Closings,     \* how often each claimer closes the line
    Trust, Send, Landing, Lag,    \* the fields of LineRules
    Broken

VARIABLES
    announced,    \* whether the line has a record
    closings,     \* in how many seconds each closing in the table is due
    task,         \* in how many seconds the index shows the task
    producer,
    claimer

vars == <<announced, closings, task, producer, claimer>>

NotPut == -1
RecheckAfter == CASE Broken = "looks at once" -> 0
                  [] Broken = "looks too early" -> Send + Landing + Landing + Lag
                  [] OTHER -> Send + Landing + Trust + Landing + Lag
MayPut(age) == age < Trust \/ Broken = "trusts a look for ever"
PutWasLate(age) == age > Trust + Landing /\ Broken # "no look after a late put"
MayDelete(age) == age < Send \/ Broken = "deletes at any time"
DeletionWasLate(age) == age > Send + Landing /\ Broken # "no second closing"

ToPut == [step |-> "check", puts |-> TRUE, age |-> 0, sent |-> 0, owes |-> FALSE]
Done == [step |-> "look", puts |-> FALSE, age |-> 0, sent |-> 0, owes |-> FALSE]
Open(left) == [step |-> "close", left |-> left, age |-> 0, sent |-> 0]

Init ==
    /\ announced = FALSE
    /\ closings = {}
    /\ task = NotPut
    /\ producer = [p \in Producers |-> IF p = Putter THEN ToPut ELSE Done]
    /\ claimer = [c \in Claimers |-> Open(Closings)]

Check(p) ==
    /\ producer[p].step = "check"
    /\ producer' = [producer EXCEPT ![p] = [ToPut EXCEPT !.step = "look"]]
    /\ UNCHANGED <<announced, closings, task, claimer>>

Look(p) ==
    LET me == producer[p]
    IN  /\ me.step = "look"
        /\ producer' = [producer EXCEPT ![p] = IF ~announced THEN [me EXCEPT !.step = "announce"]
                                               ELSE IF me.puts THEN [me EXCEPT !.step = "put"] ELSE Done]
        /\ UNCHANGED <<announced, closings, task, claimer>>

Announce(p) ==
    LET me == producer[p]
    IN  /\ me.step = "announce"
        /\ announced' = TRUE
        /\ producer' = [producer EXCEPT ![p] = IF me.puts THEN [me EXCEPT !.step = "put"] ELSE Done]
        /\ UNCHANGED <<closings, task, claimer>>

Put(p) ==
    /\ producer[p].step = "put"
    /\ producer' = [producer EXCEPT ![p] = IF MayPut(@.age) THEN [@ EXCEPT !.step = "reply"] ELSE ToPut]
    /\ UNCHANGED <<announced, closings, task, claimer>>

\* A producer that died does not look again, but then its put has landed in time.
LandPut(p) ==
    LET late == PutWasLate(producer[p].age)
    IN  /\ producer[p].step = "reply"
        /\ task' \in {0, Lag}
        /\ \/ late /\ producer' = [producer EXCEPT ![p] = [Done EXCEPT !.owes = TRUE]]
           \/ (~late \/ producer[p].sent <= Landing) /\ producer' = [producer EXCEPT ![p] = Done]
        /\ UNCHANGED <<announced, closings, claimer>>

Close(c) ==
    /\ claimer[c].step = "close"
    /\ claimer[c].left > 0
    /\ claimer' = [claimer EXCEPT ![c] = [Open(@.left - 1) EXCEPT !.step = "delete"]]
    /\ closings' = IF Broken = "no closing" THEN closings ELSE closings \cup {RecheckAfter}
    /\ UNCHANGED <<announced, task, producer>>

Delete(c) ==
    /\ claimer[c].step = "delete"
    /\ claimer' = [claimer EXCEPT ![c] = IF MayDelete(@.age) THEN [@ EXCEPT !.step = "reply"] ELSE Open(@.left)]
    /\ UNCHANGED <<announced, closings, task, producer>>

LandDelete(c) ==
    LET me == claimer[c]
        late == DeletionWasLate(me.age)
    IN  /\ me.step = "reply"
        /\ announced' = FALSE
        /\ \/ late /\ claimer' = [claimer EXCEPT ![c] = [Open(me.left) EXCEPT !.step = "close again"]]
           \/ (~late \/ me.sent <= Landing) /\ claimer' = [claimer EXCEPT ![c] = Open(me.left)]
        /\ UNCHANGED <<closings, task, producer>>

CloseAgain(c) ==
    /\ claimer[c].step = "close again"
    /\ claimer' = [claimer EXCEPT ![c] = Open(@.left)]
    /\ closings' = closings \cup {RecheckAfter}
    /\ UNCHANGED <<announced, task, producer>>

\* Upkeep may die before it deletes the closing.
Recheck ==
    /\ 0 \in closings
    /\ announced' = (announced \/ task = 0)
    /\ closings' \in {closings, closings \ {0}}
    /\ UNCHANGED <<task, producer, claimer>>

\* Ages that differ beyond these make no difference.
Least(x, y) == IF x < y THEN x ELSE y
Older(age) == Least(age + 1, Trust + Landing + 1)
Sent(me) == IF me.step = "reply" THEN Least(me.sent + 1, Landing + 1) ELSE 0
Rest(seconds) == IF seconds > 0 THEN seconds - 1 ELSE seconds

Tick ==
    /\ closings' = {Rest(due) : due \in closings}
    /\ task' = Rest(task)
    /\ producer' = [p \in Producers |->
            LET me == producer[p]
            IN  IF ~me.puts \/ me.step = "check" THEN me ELSE [me EXCEPT !.age = Older(@), !.sent = Sent(me)]]
    /\ claimer' = [c \in Claimers |->
            LET me == claimer[c]
            IN  IF me.step \in {"close", "close again"} THEN me ELSE [me EXCEPT !.age = Older(@), !.sent = Sent(me)]]
    /\ UNCHANGED announced

Next ==
    \/ \E p \in Producers : Check(p) \/ Look(p) \/ Announce(p) \/ Put(p) \/ LandPut(p)
    \/ \E c \in Claimers : Close(c) \/ Delete(c) \/ LandDelete(c) \/ CloseAgain(c)
    \/ Recheck
    \/ Tick

Spec == Init /\ [][Next]_vars

\* Even if all die now: the line of a task is announced, or upkeep looks into it once the index shows the task.
NoTaskIsStranded ==
    \/ announced
    \/ task = NotPut
    \/ \E p \in Producers : producer[p].step = "reply" \/ producer[p].owes
    \/ \E c \in Claimers : claimer[c].step \in {"reply", "close again"}
    \/ \E due \in closings : due >= task
====
