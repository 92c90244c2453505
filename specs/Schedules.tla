---- MODULE Schedules ----
(***************************************************************************)
(* Several nodes put a task for each tick of one schedule.  The ids of the *)
(* tasks follow from the ticks, and a shared record keeps the high-water   *)
(* mark and the ticks that failed below it.  Nodes die between any two     *)
(* calls; a put may fail; the queue forgets an id after its retention.     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Nodes,
    LastTick,
    CatchUp,     \* so many of the missed ticks fire late
    Broken

VARIABLES
    now,         \* ticks up to now are due
    mark,        \* the shared record: [last, failed]
    node,        \* of each node: the ticks it has still to fire, and the next step of the first of them
    fired,       \* how often a task was created for each tick
    skipped,     \* ticks that were skipped, with a warning
    known        \* ids that the queue still knows

vars == <<now, mark, node, fired, skipped, known>>

Ticks == 1..LastTick
Idle == [left |-> {}, step |-> "put"]

Init ==
    /\ now = 0
    /\ mark = [last |-> 0, failed |-> {}]
    /\ node = [n \in Nodes |-> Idle]
    /\ fired = [t \in Ticks |-> 0]
    /\ skipped = {}
    /\ known = {}

Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Max(S) == CHOOSE x \in S : \A y \in S : x >= y

Tick ==
    /\ now < LastTick
    /\ now' = now + 1
    /\ UNCHANGED <<mark, node, fired, skipped, known>>

\* A node reads the record, skips ticks that newer ones replace, and begins with the others.
Begin(n) ==
    LET due == mark.failed \cup {t \in Ticks : mark.last < t /\ t <= now}
        first == now - CatchUp + 1
        late == {t \in due : t < first}
    IN  /\ node[n].left = {}
        /\ due # {}
        /\ node' = [node EXCEPT ![n] = [left |-> due \ late,
                                        step |-> IF Broken = "marked before the put" THEN "mark" ELSE "put"]]
        /\ skipped' = skipped \cup late
        /\ mark' = IF late = {} THEN mark
                   ELSE [last |-> Max({mark.last} \cup late), failed |-> mark.failed \ late]
        /\ UNCHANGED <<now, fired, known>>

Put(n) ==
    LET t == Min(node[n].left)
    IN  /\ node[n].left # {}
        /\ node[n].step = "put"
        /\ IF t \in known /\ Broken # "an id of each node"
           THEN UNCHANGED <<fired, known>>
           ELSE /\ fired' = [fired EXCEPT ![t] = IF @ = 2 THEN 2 ELSE @ + 1]
                /\ known' = known \cup {t}
        /\ node' = IF Broken = "marked before the put" THEN [node EXCEPT ![n].left = @ \ {t}, ![n].step = "mark"]
                   ELSE [node EXCEPT ![n].step = "mark"]
        /\ UNCHANGED <<now, mark, skipped>>

\* The queue is overloaded, or the payload's function fails.
PutFails(n) ==
    LET t == Min(node[n].left)
    IN  /\ node[n].left # {}
        /\ node[n].step = "put"
        /\ Broken # "marked before the put"
        /\ mark' = IF t > mark.last /\ Broken # "a failed tick is not kept"
                   THEN [last |-> t, failed |-> mark.failed \cup {t}] ELSE mark
        /\ node' = [node EXCEPT ![n].left = @ \ {t}]
        /\ UNCHANGED <<now, fired, skipped, known>>

Mark(n) ==
    LET t == Min(node[n].left)
    IN  /\ node[n].left # {}
        /\ node[n].step = "mark"
        /\ mark' = [last |-> Max({mark.last, t}), failed |-> mark.failed \ {t}]
        /\ node' = IF Broken = "marked before the put" THEN [node EXCEPT ![n].step = "put"]
                   ELSE [node EXCEPT ![n].left = @ \ {t}, ![n].step = "put"]
        /\ UNCHANGED <<now, fired, skipped, known>>

Die(n) ==
    /\ node[n] # Idle
    /\ node' = [node EXCEPT ![n] = Idle]
    /\ UNCHANGED <<now, mark, fired, skipped, known>>

\* No node stalls for longer than the retention of a task.
Forget(t) ==
    /\ t \in known
    /\ Broken = "a retention shorter than a stall" \/
            (t <= mark.last /\ t \notin mark.failed /\ \A n \in Nodes : t \notin node[n].left)
    /\ known' = known \ {t}
    /\ UNCHANGED <<now, mark, node, fired, skipped>>

Next ==
    \/ Tick
    \/ \E n \in Nodes : Begin(n) \/ Put(n) \/ PutFails(n) \/ Mark(n) \/ Die(n)
    \/ \E t \in Ticks : Forget(t)

Symmetry == Permutations(Nodes)
Spec == Init /\ [][Next]_vars

FiredOnce == \A t \in Ticks : fired[t] <= 1
NoTickIsLost == \A t \in Ticks :
    t <= mark.last => fired[t] > 0 \/ t \in skipped \/ t \in mark.failed \/ \E n \in Nodes : t \in node[n].left
====
