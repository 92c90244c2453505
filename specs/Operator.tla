---- MODULE Operator ----
(***************************************************************************)
(* Verbs of operators on one task beside its worker.  Each reads the task, *)
(* computes the next version, and writes it unless the task changed.  With *)
(* force it takes a held task from its worker.  The store counts its tasks *)
(* by status at each write.                                                *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Transitions

CONSTANTS
    Operators,
    MaxWrites,   \* writes of one behavior
    Broken

VARIABLES
    task,        \* [status, token, version]; the version counts its writes
    plan,        \* of each operator: the write that it computed, with the version that it read
    worker,      \* the token that a worker holds or held last, and whether it still runs
    counts,      \* number of tasks by status
    faults

vars == <<task, plan, worker, counts, faults>>

No == 0
Nothing == [verb |-> "none"]
Statuses == {"PENDING", "TAKEN", "SUCCESS", "FAILURE", "CANCELLED", "SHED"}

\* The verbs of operators and sweeps with the statuses in which they apply, and the new status.
Verbs == [
    cancel |-> <<"cancel", "CANCELLED">>, cancelAsDead |-> <<"cancel as dead", "FAILURE">>,
    redrive |-> <<"redrive", "PENDING">>, asNew |-> <<"redrive as new", "PENDING">>,
    reprioritize |-> <<"reprioritize", "PENDING">>, shed |-> <<"shed", "SHED">>,
    promote |-> <<"promote", "PENDING">>,
    forcedCancel |-> <<"cancel by force", "CANCELLED">>,
    forcedCancelAsDead |-> <<"cancel as dead by force", "FAILURE">>,
    forcedRedrive |-> <<"redrive by force", "PENDING">>]
Forced == {"forcedCancel", "forcedCancelAsDead", "forcedRedrive"}

Init ==
    /\ task = [status |-> "PENDING", token |-> No, version |-> 1]
    /\ plan = [o \in Operators |-> Nothing]
    /\ worker = [token |-> No, runs |-> FALSE]
    /\ counts = [s \in Statuses |-> IF s = "PENDING" THEN 1 ELSE 0]
    /\ faults = {}

Fault(happened, what) == IF happened THEN {what} ELSE {}

Store(to, token) ==
    /\ task.version < MaxWrites
    /\ task' = [status |-> to, token |-> token, version |-> task.version + 1]
    /\ counts' = [s \in Statuses |->
            counts[s] + (IF s = to THEN 1 ELSE 0)
                      - (IF s = task.status /\ Broken # "counted at its new place only" THEN 1 ELSE 0)]

Claim ==
    /\ task.status = "PENDING"
    /\ ~worker.runs
    /\ Store(Follow("claim", "PENDING", "TAKEN"), task.version)
    /\ worker' = [token |-> task.version, runs |-> TRUE]
    /\ UNCHANGED <<plan, faults>>

\* A dead letter is taken by somebody who looks into it.
ClaimDead ==
    /\ task.status = "FAILURE"
    /\ ~worker.runs
    /\ Store(Follow("claim dead", "FAILURE", "TAKEN"), task.version)
    /\ worker' = [token |-> task.version, runs |-> TRUE]
    /\ UNCHANGED <<plan, faults>>

Settle ==
    /\ worker.runs
    /\ worker' = [worker EXCEPT !.runs = FALSE]
    /\ IF task.status = "TAKEN" /\ task.token = worker.token
       THEN \/ Store(Follow("complete", task.status, "SUCCESS"), No)
            \/ Store(Follow("fail", task.status, "FAILURE"), No)
            \/ Store(Follow("shed claimed", task.status, "SHED"), No)
       ELSE UNCHANGED <<task, counts>>
    /\ UNCHANGED <<plan, faults>>

Read(o, verb) ==
    /\ plan[o] = Nothing
    /\ task.status \in Transitions[Verbs[verb][1]][1]
    /\ plan' = [plan EXCEPT ![o] = [verb |-> verb, seen |-> task.version]]
    /\ UNCHANGED <<task, worker, counts, faults>>

Write(o) ==
    LET verb == plan[o].verb
        to == Verbs[verb][2]
        keeps == verb \in {"reprioritize", "promote"}
    IN  /\ plan[o] # Nothing
        /\ plan' = [plan EXCEPT ![o] = Nothing]
        /\ IF task.version = plan[o].seen \/ Broken = "written over a change"
           THEN /\ Store(IF Broken = "nothing" THEN Follow(Verbs[verb][1], task.status, to) ELSE to, No)
                /\ faults' = faults
                    \cup Fault(task.status = "TAKEN" /\ verb \notin Forced, "taken from its holder without force")
                    \cup Fault(task.status \in {"SUCCESS", "CANCELLED", "SHED"}, "brought back after its end")
           ELSE UNCHANGED <<task, counts, faults>>
        /\ UNCHANGED worker

Next ==
    \/ Claim
    \/ ClaimDead
    \/ Settle
    \/ \E o \in Operators : (\E verb \in DOMAIN Verbs : Read(o, verb)) \/ Write(o)

Symmetry == Permutations(Operators)
Spec == Init /\ [][Next]_vars

OnlyForceTakesFromAHolder == "taken from its holder without force" \notin faults
AnEndIsAnEnd == "brought back after its end" \notin faults
TheLedgerBalances == \A s \in Statuses : counts[s] = IF s = task.status THEN 1 ELSE 0
HeldUnderALease == (task.status = "TAKEN") = (task.token # No)
====
