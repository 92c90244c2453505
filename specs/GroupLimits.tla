---- MODULE GroupLimits ----
(***************************************************************************)
(* At most Limit tasks of a group run at a time.  A claim counts the tasks *)
(* of the group under running leases and takes one in the same write, so   *)
(* the count is in the leases: it cannot leak when a worker is killed.     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Transitions

CONSTANTS
    Tasks,
    Workers,
    Limit,
    Broken

VARIABLES
    status,      \* of each task
    holder,      \* of each task: its worker, or the worker that held it last
    lapsed,      \* the held tasks whose lease has run out
    counter,     \* a number beside the leases, for the variants
    seen         \* of each worker: how many it counted, if it counts in a call of its own; Limit before

vars == <<status, holder, lapsed, counter, seen>>

Nobody == "nobody"
Taken == {t \in Tasks : status[t] = "TAKEN"} \ lapsed
Counted == IF Broken \in {"a counter that the worker lowers", "lowered by the sweep and by the worker"}
           THEN counter ELSE Cardinality(Taken)

Init ==
    /\ status = [t \in Tasks |-> "PENDING"]
    /\ holder = [t \in Tasks |-> Nobody]
    /\ lapsed = {}
    /\ counter = 0
    /\ seen = [w \in Workers |-> Limit]

Count(w) ==
    /\ seen' = [seen EXCEPT ![w] = Counted]
    /\ seen # seen'
    /\ Broken = "counted before the claim"
    /\ UNCHANGED <<status, holder, lapsed, counter>>

Claim(w, t) ==
    /\ status[t] = "PENDING"
    /\ IF Broken = "counted before the claim" THEN seen[w] < Limit ELSE Counted < Limit
    /\ status' = [status EXCEPT ![t] = Follow("claim", @, "TAKEN")]
    /\ holder' = [holder EXCEPT ![t] = w]
    /\ counter' = counter + 1
    /\ seen' = [seen EXCEPT ![w] = Limit]
    /\ UNCHANGED lapsed

Lowered(by) == IF counter < by THEN 0 ELSE counter - by

Complete(w, t) ==
    /\ holder[t] = w
    /\ IF status[t] = "TAKEN"
       THEN status' = [status EXCEPT ![t] = Follow("complete", @, "SUCCESS")]
       ELSE UNCHANGED status
    /\ holder' = [holder EXCEPT ![t] = Nobody]
    /\ counter' = IF status[t] = "TAKEN" \/ Broken = "lowered by the sweep and by the worker"
                  THEN Lowered(1) ELSE counter
    /\ lapsed' = lapsed \ {t}
    /\ UNCHANGED seen

\* Others do not count a task whose lease has run out: it has lost its place, and returns.
Extend(w, t) ==
    /\ holder[t] = w
    /\ status[t] = "TAKEN"
    /\ t \in lapsed
    /\ lapsed' = lapsed \ {t}
    /\ IF Broken = "an extension after the end keeps its place"
       THEN UNCHANGED <<status, holder, counter>>
       ELSE /\ status' = [status EXCEPT ![t] = Follow("release", @, "PENDING")]
            /\ holder' = [holder EXCEPT ![t] = Nobody]
            /\ counter' = Lowered(1)
    /\ UNCHANGED seen

Die(w) ==
    /\ \E t \in Tasks : holder[t] = w
    /\ holder' = [t \in Tasks |-> IF holder[t] = w THEN Nobody ELSE holder[t]]
    /\ UNCHANGED <<status, lapsed, counter, seen>>

\* A lease runs out: its worker is dead, or slow and not told yet.
Lapse(t) ==
    /\ t \in Taken
    /\ lapsed' = lapsed \cup {t}
    /\ UNCHANGED <<status, holder, counter, seen>>

Recover(t) ==
    /\ t \in lapsed
    /\ lapsed' = lapsed \ {t}
    /\ status' = [status EXCEPT ![t] = Follow("recover", @, "PENDING")]
    /\ counter' = IF Broken = "a counter that the worker lowers" THEN counter ELSE Lowered(1)
    /\ UNCHANGED <<holder, seen>>

Next ==
    \/ \E w \in Workers : \/ Count(w) \/ Die(w)
                          \/ \E t \in Tasks : Claim(w, t) \/ Complete(w, t) \/ Extend(w, t)
    \/ \E t \in Tasks : Lapse(t) \/ Recover(t)

Spec == Init /\ [][Next]_vars

NeverAboveTheLimit == Cardinality(Taken) <= Limit
\* A group with a free slot is not refused.
NoSlotLeaks == Cardinality(Taken) < Limit => Counted < Limit
====
