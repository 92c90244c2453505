---- MODULE Relay ----
(***************************************************************************)
(* An application puts tasks into an outbox in its own transactions, and   *)
(* relays move them to another queue under the same ids.  Relays die       *)
(* between any two calls, replies are lost, and leases of the outbox run   *)
(* out while a relay stalls.                                               *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Transitions

CONSTANTS
    Tasks,
    Relays,
    Tokens,      \* 1..n: most claims of the outbox
    Broken

VARIABLES
    business,    \* of each task: the application's own change: "open", "committed", "rolled back"
    source,      \* of each task: [status, token] in the outbox; status "none" before it is there
    destination, \* how often the destination created the task
    known,       \* ids that the destination still knows
    relay,       \* of each relay: [phase, task, token]
    used

vars == <<business, source, destination, known, relay, used>>

No == 0
Idle == [phase |-> "idle", task |-> No, token |-> No]

Init ==
    /\ business = [t \in Tasks |-> "open"]
    /\ source = [t \in Tasks |-> [status |-> "none", token |-> No]]
    /\ destination = [t \in Tasks |-> 0]
    /\ known = {}
    /\ relay = [r \in Relays |-> Idle]
    /\ used = 0

\* One transaction has both; or neither, if it fails or its process dies.
Commit(t) ==
    /\ business[t] = "open"
    /\ business' = [business EXCEPT ![t] = "committed"]
    /\ source' = IF Broken = "put outside the transaction" THEN source
                 ELSE [source EXCEPT ![t].status = "PENDING"]
    /\ UNCHANGED <<destination, known, relay, used>>

RollBack(t) ==
    /\ business[t] = "open"
    /\ business' = [business EXCEPT ![t] = "rolled back"]
    /\ UNCHANGED <<source, destination, known, relay, used>>

PutOutside(t) ==
    /\ Broken = "put outside the transaction"
    /\ source[t].status = "none"
    /\ business[t] = "open"
    /\ source' = [source EXCEPT ![t].status = "PENDING"]
    /\ UNCHANGED <<business, destination, known, relay, used>>

Claim(r, t) ==
    /\ relay[r].phase = "idle"
    /\ source[t].status = "PENDING"
    /\ used + 1 \in Tokens
    /\ used' = used + 1
    /\ source' = [source EXCEPT ![t] = [status |-> Follow("claim", @.status, "TAKEN"), token |-> used + 1]]
    /\ relay' = [relay EXCEPT ![r] = [phase |-> "claimed", task |-> t, token |-> used + 1]]
    /\ UNCHANGED <<business, destination, known>>

\* The put arrives; an id that is known is a duplicate.
Arrive(t) ==
    IF t \in known /\ Broken # "an id of its own at the destination"
    THEN UNCHANGED <<destination, known>>
    ELSE /\ destination' = [destination EXCEPT ![t] = IF @ = 2 THEN 2 ELSE @ + 1]
         /\ known' = known \cup {t}

Put(r) ==
    /\ relay[r].phase = "claimed"
    /\ Arrive(relay[r].task)
    /\ \* The reply comes, or is lost: then the task goes back.
       \/ relay' = [relay EXCEPT ![r].phase = "put"]
       \/ relay' = [relay EXCEPT ![r].phase = "failed"]
    /\ UNCHANGED <<business, source, used>>

\* The destination does not answer, and has nothing.
PutFails(r) ==
    /\ relay[r].phase = "claimed"
    /\ relay' = [relay EXCEPT ![r].phase = "failed"]
    /\ UNCHANGED <<business, source, destination, known, used>>

Settle(r, from, verb, to) ==
    LET t == relay[r].task
    IN  /\ relay[r].phase \in from
        /\ relay' = [relay EXCEPT ![r] = Idle]
        /\ source' = IF source[t].status = "TAKEN" /\ source[t].token = relay[r].token
                     THEN [source EXCEPT ![t] = [status |-> Follow(verb, @.status, to), token |-> No]]
                     ELSE source
        /\ UNCHANGED <<business, destination, known, used>>

Complete(r) ==
    Settle(r, IF Broken = "completed before it arrived" THEN {"claimed", "put"} ELSE {"put"}, "complete", "SUCCESS")

\* A failure of the destination spends no attempt.
Return(r) == Settle(r, {"failed"}, IF Broken = "a failure is an end" THEN "fail" ELSE "release",
                    IF Broken = "a failure is an end" THEN "FAILURE" ELSE "PENDING")

Die(r) ==
    /\ relay[r].phase # "idle"
    /\ relay' = [relay EXCEPT ![r] = Idle]
    /\ UNCHANGED <<business, source, destination, known, used>>

\* A lease may run out at any time: the relay may be dead, or only slow.
Recover(t) ==
    /\ source[t].status = "TAKEN"
    /\ source' = [source EXCEPT ![t] = [status |-> Follow("recover", @.status, "PENDING"), token |-> No]]
    /\ UNCHANGED <<business, destination, known, relay, used>>

\* The destination forgets an id after its retention.  It is longer than a lease of the outbox, so that no
\* relay still tries to put a task that arrived so long ago.
Forget(t) ==
    /\ t \in known
    /\ Broken = "a retention shorter than the lease" \/ source[t].status \notin {"PENDING", "TAKEN"}
    /\ Broken = "a retention shorter than the lease" \/ \A r \in Relays : relay[r].task # t
    /\ known' = known \ {t}
    /\ UNCHANGED <<business, source, destination, relay, used>>

Next ==
    \/ \E t \in Tasks : Commit(t) \/ RollBack(t) \/ PutOutside(t) \/ Recover(t) \/ Forget(t)
    \/ \E r \in Relays : \/ \E t \in Tasks : Claim(r, t)
                         \/ Put(r) \/ PutFails(r) \/ Complete(r) \/ Return(r) \/ Die(r)

Spec == Init /\ [][Next]_vars

EmittedOnlyIfCommitted == \A t \in Tasks : destination[t] > 0 => business[t] = "committed"
NothingIsLost == \A t \in Tasks :
    business[t] = "committed" => destination[t] > 0 \/ source[t].status \in {"PENDING", "TAKEN"}
EmittedOnce == \A t \in Tasks : destination[t] <= 1
====
