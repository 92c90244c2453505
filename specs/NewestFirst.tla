---- MODULE NewestFirst ----
(***************************************************************************)
(* The order of claims of a LIFO line, as claims find it in an index that  *)
(* lags.  A task has the place of its put, also when it returns.  A claim  *)
(* reads the index, newest first, and tries what it read.  After a lost    *)
(* race it goes on somewhere among the rest, so that claimers part.        *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Transitions

CONSTANTS
    Tasks,        \* 1..n, in the order of their puts
    Claimers,
    LastTime,
    Lag,          \* the index shows a change by then
    Broken

VARIABLES
    now,
    status,       \* of each task
    since,        \* of each task: when it came into its line last
    indexed,      \* the tasks that the index shows as waiting
    read,         \* of each claimer: what it read and did not try yet
    raced,        \* of each claimer: whether another took first what it tried
    began,        \* of each claimer: when it read
    passed        \* what the last claim passed over: [task, seen, raced, age]

vars == <<now, status, since, indexed, read, raced, began, passed>>

Waiting(t) == status[t] = "PENDING"
Newest(S) == CHOOSE t \in S : \A u \in S : u <= t
Oldest(S) == CHOOSE t \in S : \A u \in S : u >= t

Init ==
    /\ now = 0
    /\ status = [t \in Tasks |-> "NEW"]
    /\ since = [t \in Tasks |-> 0]
    /\ indexed = {}
    /\ read = [c \in Claimers |-> {}]
    /\ raced = [c \in Claimers |-> FALSE]
    /\ began = [c \in Claimers |-> 0]
    /\ passed = {}

Put(t) ==
    /\ status[t] = "NEW"
    /\ \A u \in Tasks : u < t => status[u] # "NEW"
    /\ status' = [status EXCEPT ![t] = "PENDING"]
    /\ since' = [since EXCEPT ![t] = now]
    /\ UNCHANGED <<now, indexed, read, raced, began, passed>>

Release(t) ==
    /\ status[t] = "TAKEN"
    /\ status' = [status EXCEPT ![t] = Follow("release", @, "PENDING")]
    /\ since' = [since EXCEPT ![t] = now]
    /\ UNCHANGED <<now, indexed, read, raced, began, passed>>

\* The index shows a change of a task.
Show(t) ==
    /\ indexed' = IF Waiting(t) THEN indexed \cup {t} ELSE indexed \ {t}
    /\ UNCHANGED <<now, status, since, read, raced, began, passed>>

Read(c) ==
    /\ read[c] = {}
    /\ indexed # {}
    /\ read' = [read EXCEPT ![c] = indexed]
    /\ raced' = [raced EXCEPT ![c] = FALSE]
    /\ began' = [began EXCEPT ![c] = now]
    /\ UNCHANGED <<now, status, since, indexed, passed>>

Choices(c) ==
    IF raced[c] THEN read[c]
    ELSE IF Broken = "the oldest first" THEN {Oldest(read[c])}
    ELSE IF Broken = "claimers part at once" THEN read[c]
    ELSE {Newest(read[c])}

Claim(c) ==
    /\ read[c] # {}
    /\ \E t \in Choices(c) :
        IF Waiting(t)
        THEN /\ status' = [status EXCEPT ![t] = Follow("claim", @, "TAKEN")]
             /\ passed' = {[seen |-> u \in read[c], raced |-> raced[c], age |-> began[c] - since[u],
                            after |-> since[u] > began[c]] : u \in {v \in Tasks : v > t /\ Waiting(v)}}
             /\ read' = [read EXCEPT ![c] = {}]
             /\ UNCHANGED raced
        ELSE /\ read' = [read EXCEPT ![c] = @ \ {t}]
             /\ raced' = [raced EXCEPT ![c] = TRUE]
             /\ UNCHANGED <<status, passed>>
    /\ UNCHANGED <<now, since, indexed, began>>

\* No time passes the lag of a change.
Tick ==
    /\ now < LastTime
    /\ \A t \in Tasks : Waiting(t) /\ t \notin indexed => now < since[t] + Lag
                                                          \/ Broken = "a lag without a bound"
    /\ now' = now + 1
    /\ UNCHANGED <<status, since, indexed, read, raced, began, passed>>

Next ==
    \/ \E t \in Tasks : Put(t) \/ Release(t) \/ Show(t)
    \/ \E c \in Claimers : Read(c) \/ Claim(c)
    \/ Tick

Spec == Init /\ [][Next]_vars

\* A claim passes over a newer task only if it lost a race, or the task came into its line less than Lag before the
\* claim read the index, or since.
NewestFirstWithinBounds ==
    \A over \in passed : over.raced \/ over.after \/ (~over.seen /\ over.age <= Lag)

Symmetry == {f \in [Claimers -> Claimers] : \A c, d \in Claimers : f[c] = f[d] => c = d}
====
