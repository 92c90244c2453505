---- MODULE Lease ----
(***************************************************************************)
(* One task under leases, as every store keeps it: a record that changes   *)
(* by conditional writes.  A request may land late, several times or       *)
(* never, in any order, and workers die.  Each claim has a token of its    *)
(* own, and stands here for its worker: a worker that claims again is      *)
(* another one.  The version of the record is the token of the write that  *)
(* made it, so a copy of a write makes the same version again.             *)
(***************************************************************************)
EXTENDS Naturals, Transitions

CONSTANTS
    Tokens,       \* lease tokens 1..n
    LastTime,
    Deadline,     \* from then on the task is stale
    LeaseTime,
    MaxAttempts,
    Verbs,        \* by which a run may end
    Broken        \* the part that is left out; "nothing" is the code

VARIABLES
    now,
    task,         \* [status, token, until, version, attempts, ended]
    net,          \* requests that were sent; each may land any number of times
    claimer,      \* of each token: "unused", "asked", "runs" or "gone"
    landed,       \* tokens whose claim took the task
    ends,         \* how often the task came to an end
    faults        \* what must never happen, as it happened

vars == <<now, task, net, claimer, landed, ends, faults>>

No == 0
EndsAs == [complete |-> "SUCCESS", fail |-> "FAILURE", retry |-> "PENDING", release |-> "PENDING"]

Init ==
    /\ now = 0
    /\ task = [status |-> "PENDING", token |-> No, until |-> 0, version |-> <<"put">>, attempts |-> 0,
               ended |-> No]
    /\ net = {}
    /\ claimer = [k \in Tokens |-> "unused"]
    /\ landed = {}
    /\ ends = 0
    /\ faults = {}

Send(request) == net' = net \cup {request}

-----------------------------------------------------------------------------
\* Processes.

AskClaim(k) ==
    /\ claimer[k] = "unused"
    /\ \A other \in Tokens : other < k => claimer[other] # "unused"
    /\ now < Deadline
    /\ Send([kind |-> "claim", token |-> k, until |-> now + LeaseTime])
    /\ claimer' = [claimer EXCEPT ![k] = "asked"]
    /\ UNCHANGED <<now, task, landed, ends, faults>>

\* The answer comes, perhaps late; a task that became stale meanwhile is given back instead of run.
Start(k) ==
    /\ claimer[k] = "asked"
    /\ k \in landed
    /\ Broken = "no look before the run" \/ now < Deadline
    /\ claimer' = [claimer EXCEPT ![k] = "runs"]
    /\ faults' = IF now >= Deadline THEN faults \cup {"a stale task started"} ELSE faults
    /\ UNCHANGED <<now, task, net, landed, ends>>

GiveBack(k) ==
    /\ claimer[k] = "asked"
    /\ k \in landed
    /\ now >= Deadline
    /\ Send([kind |-> "settle", verb |-> "release", to |-> "PENDING", token |-> k, attempt |-> 1])
    /\ claimer' = [claimer EXCEPT ![k] = "gone"]
    /\ UNCHANGED <<now, task, landed, ends, faults>>

\* It reads the version; the write lands later, or is refused and repeated for another version.
AskExtend(k) ==
    /\ claimer[k] = "runs"
    /\ task.token = k
    /\ now + LeaseTime <= LastTime
    /\ Send([kind |-> "extend", token |-> k, seen |-> task.version, until |-> now + LeaseTime])
    /\ UNCHANGED <<now, task, claimer, landed, ends, faults>>

AskSettle(k) ==
    /\ claimer[k] = "runs"
    /\ \E verb \in Verbs :
        Send([kind |-> "settle", verb |-> verb, to |-> EndsAs[verb], token |-> k, attempt |-> 1])
    /\ claimer' = [claimer EXCEPT ![k] = "gone"]
    /\ UNCHANGED <<now, task, landed, ends, faults>>

\* The worker dies, or never learns that it claimed the task.
Die(k) ==
    /\ claimer[k] \in {"asked", "runs"}
    /\ claimer' = [claimer EXCEPT ![k] = "gone"]
    /\ UNCHANGED <<now, task, net, landed, ends, faults>>

\* The sweep reads a lease that ran out, and sends a write for the version that it read.
Sweep ==
    /\ task.status = "TAKEN"
    /\ task.until <= now
    /\ Send([kind |-> "recover", token |-> task.token, seen |-> task.version,
             to |-> IF task.attempts < MaxAttempts THEN "PENDING" ELSE "FAILURE"])
    /\ UNCHANGED <<now, task, claimer, landed, ends, faults>>

Tick ==
    /\ now < LastTime
    /\ now' = now + 1
    /\ UNCHANGED <<task, net, claimer, landed, ends, faults>>

-----------------------------------------------------------------------------
\* Requests that land in the store.

Fault(happened, what) == IF happened THEN {what} ELSE {}
Ending(to) == ends' = IF to = "PENDING" \/ ends = 2 THEN ends ELSE ends + 1

LandClaim(m) ==
    /\ m.kind = "claim"
    /\ task.status = "PENDING"
    /\ task.ended # m.token
    /\ task' = [task EXCEPT !.status = Follow("claim", "PENDING", "TAKEN"), !.token = m.token,
                            !.until = m.until, !.version = <<"claim", m.token>>,
                            !.attempts = IF @ < MaxAttempts THEN @ + 1 ELSE @]
    /\ landed' = landed \cup {m.token}
    /\ UNCHANGED <<now, net, claimer, ends, faults>>

LandExtend(m) ==
    /\ m.kind = "extend"
    /\ task.status = "TAKEN"
    /\ task.token = m.token
    /\ task.version = m.seen
    /\ task' = [task EXCEPT !.status = Follow("extend", "TAKEN", "TAKEN"),
                            !.until = IF m.until > @ THEN m.until ELSE @,
                            !.version = <<"extend", m.token, m.until>>]
    /\ UNCHANGED <<now, net, claimer, landed, ends, faults>>

SettleGuard(m) ==
    CASE Broken = "no fence" -> task.status = "TAKEN"
      [] Broken = "fence by attempt" -> task.status = "TAKEN" /\ task.attempts = m.attempt
      [] Broken = "no status in the guard" -> task.ended = m.token \/ task.token = m.token
      [] OTHER -> task.status = "TAKEN" /\ task.token = m.token

LandSettle(m) ==
    /\ m.kind = "settle"
    /\ SettleGuard(m)
    /\ task' = [task EXCEPT !.status = IF task.status = "TAKEN" THEN Follow(m.verb, @, m.to) ELSE m.to,
                            !.token = No, !.ended = m.token, !.version = <<m.verb, m.token>>,
                            !.attempts = IF m.verb = "release" /\ @ > 0 THEN @ - 1 ELSE @]
    /\ Ending(m.to)
    /\ faults' = faults \cup Fault(task.token \notin {No, m.token}, "another than the holder ended it")
    /\ UNCHANGED <<now, net, claimer, landed>>

LandRecover(m) ==
    /\ m.kind = "recover"
    /\ task.status = "TAKEN"
    /\ task.token = m.token
    /\ Broken = "a sweep that trusts an old read" \/ task.version = m.seen
    /\ task' = [task EXCEPT !.status = Follow("recover", @, m.to), !.token = No, !.ended = m.token,
                            !.version = <<"recover", m.token>>]
    /\ Ending(m.to)
    /\ faults' = faults \cup Fault(task.until > now, "a running lease was taken away")
    /\ UNCHANGED <<now, net, claimer, landed>>

-----------------------------------------------------------------------------
Recovery == \E m \in net : LandRecover(m)

Next ==
    \/ \E k \in Tokens : AskClaim(k) \/ Start(k) \/ GiveBack(k) \/ AskExtend(k) \/ AskSettle(k) \/ Die(k)
    \/ \E m \in net : LandClaim(m) \/ LandExtend(m) \/ LandSettle(m) \/ LandRecover(m)
    \/ Sweep
    \/ Tick

Spec == Init /\ [][Next]_vars /\ WF_vars(Tick) /\ WF_vars(Sweep) /\ WF_vars(Recovery)

EndsOnce == ends <= 1
OnlyTheHolderEnds == "another than the holder ended it" \notin faults
ARunningLeaseIsKept == "a running lease was taken away" \notin faults
AStaleTaskNeverStarts == "a stale task started" \notin faults
HeldUnderALease == (task.status = "TAKEN") = (task.token # No)

Expired == task.status = "TAKEN" /\ task.until <= now
NothingIsHeldForEver == Expired ~> ~Expired
====
