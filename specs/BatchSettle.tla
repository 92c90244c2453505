---- MODULE BatchSettle ----
(***************************************************************************)
(* A worker settles several tasks in one call of DynamoDB.  Each statement *)
(* is carried out, refused or put off by itself; the reply may be lost,    *)
(* and the call is sent again.  A statement recognizes its own earlier     *)
(* write by its request token.                                             *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Transitions

CONSTANTS
    Tasks,
    Tries,
    Broken

VARIABLES
    item,      \* of each task: who wrote it last: "held" (by this worker), "settled" by it, or "another"
    reply,     \* of each task, in the reply that is under way; "none" without one
    answer,    \* what the worker tells its caller of each task; "none" before
    settled,   \* tasks that this worker's write ended at some time
    tries

vars == <<item, reply, answer, settled, tries>>

Init ==
    /\ item = [t \in Tasks |-> "held"]
    /\ reply = [t \in Tasks |-> "none"]
    /\ answer = [t \in Tasks |-> "none"]
    /\ settled = {}
    /\ tries = 0

Left == {t \in Tasks : answer[t] = "none"}

\* The call arrives; of the statements, a part is put off.
Send ==
    /\ Left # {}
    /\ tries < Tries
    /\ \A t \in Tasks : reply[t] = "none"
    /\ tries' = tries + 1
    /\ \E late \in SUBSET Left :
        LET done == {t \in Left \ late : item[t] = "held" /\ Follow("complete", "TAKEN", "SUCCESS") = "SUCCESS"}
        IN  /\ item' = [t \in Tasks |-> IF t \in done THEN "settled" ELSE item[t]]
            /\ settled' = settled \cup done
            /\ reply' = [t \in Tasks |->
                    IF t \notin Left THEN "none"
                    ELSE IF t \in late THEN "put off"
                    ELSE IF t \in done THEN "done"
                    ELSE IF item[t] = "settled" THEN "own" ELSE "refused"]
    /\ UNCHANGED answer

\* The lease ran out, and somebody else has the task; or it was cancelled by force.
TakenAway(t) ==
    /\ item[t] = "held"
    /\ item' = [item EXCEPT ![t] = "another"]
    /\ UNCHANGED <<reply, answer, settled, tries>>

Meaning(r) ==
    CASE r = "done" -> "stored"
      [] r = "own" -> IF Broken = "an own write is not recognized" THEN "lost" ELSE "stored"
      [] r = "refused" -> "lost"
      [] r = "put off" -> IF Broken = "a partial answer is a success" THEN "stored" ELSE "none"
      [] OTHER -> "none"

Receive ==
    /\ \E t \in Tasks : reply[t] # "none"
    /\ answer' = [t \in Tasks |-> IF answer[t] = "none" THEN Meaning(reply[t]) ELSE answer[t]]
    /\ reply' = [t \in Tasks |-> "none"]
    /\ UNCHANGED <<item, settled, tries>>

LoseReply ==
    /\ \E t \in Tasks : reply[t] # "none"
    /\ reply' = [t \in Tasks |-> "none"]
    /\ answer' = IF Broken = "a lost reply is a lost lease"
                 THEN [t \in Tasks |-> IF answer[t] = "none" THEN "lost" ELSE answer[t]] ELSE answer
    /\ UNCHANGED <<item, settled, tries>>

\* After the last try the caller is told that the end is not known.
GiveUp ==
    /\ tries = Tries
    /\ \A t \in Tasks : reply[t] = "none"
    /\ Left # {}
    /\ answer' = [t \in Tasks |-> IF answer[t] = "none" THEN "unknown" ELSE answer[t]]
    /\ UNCHANGED <<item, reply, settled, tries>>

Next ==
    \/ Send
    \/ Receive
    \/ LoseReply
    \/ GiveUp
    \/ \E t \in Tasks : TakenAway(t)

Spec == Init /\ [][Next]_vars

StoredIsStored == \A t \in Tasks : answer[t] = "stored" => t \in settled
LostIsLost == \A t \in Tasks : answer[t] = "lost" => t \notin settled
====
