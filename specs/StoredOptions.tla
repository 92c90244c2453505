---- MODULE StoredOptions ----
(***************************************************************************)
(* Options are stored with their queue, in one record that is written only *)
(* if it is as it was read.  Processes open the queue naming options, or   *)
(* configure it at the same time, and follow what is stored.               *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Processes,
    Most,        \* the options of a queue are "order" and "shards", each with values 1..Most
    MaxWrites,
    Broken

VARIABLES
    stored,      \* [version, order, shards]; 0: not stored
    doing,       \* of each process: what it read and is about to write
    told,        \* the newest value of each option that a configure answered with
    follows,     \* what each process uses
    faults

vars == <<stored, doing, told, follows, faults>>

Values == 1..Most
Names == {"order", "shards"}
Nothing == [kind |-> "none"]

Init ==
    /\ stored = [version |-> 0, order |-> 0, shards |-> 0]
    /\ doing = [p \in Processes |-> Nothing]
    /\ told = [n \in Names |-> 0]
    /\ follows = [p \in Processes |-> [order |-> 1, shards |-> 1]]
    /\ faults = {}

Max(a, b) == IF a > b THEN a ELSE b
Used(values) == [n \in Names |-> IF values[n] = 0 THEN 1 ELSE values[n]]

\* create_table() stores what the process named, and keeps what is stored already.
BeginCreate(p, name, value) ==
    /\ doing[p] = Nothing
    /\ doing' = [doing EXCEPT ![p] = [kind |-> "create", name |-> name, value |-> value, seen |-> stored]]
    /\ UNCHANGED <<stored, told, follows, faults>>

BeginConfigure(p, name, value) ==
    /\ doing[p] = Nothing
    /\ name = "shards" /\ Broken # "shards may shrink" => value >= Max(1, stored.shards)
    /\ doing' = [doing EXCEPT ![p] = [kind |-> "configure", name |-> name, value |-> value, seen |-> stored]]
    /\ UNCHANGED <<stored, told, follows, faults>>

\* It is written if the record is as it was read; otherwise the process begins again.
Write(p) ==
    LET d == doing[p]
        free == d.seen[d.name] = 0 \/ Broken = "named options win"
        after == IF d.kind = "configure" \/ free THEN [d.seen EXCEPT ![d.name] = d.value] ELSE d.seen
        goes == d.seen.version = stored.version \/ Broken = "written without the version"
    IN  /\ d # Nothing
        /\ stored.version < MaxWrites
        /\ doing' = [doing EXCEPT ![p] = Nothing]
        /\ IF goes
           THEN /\ stored' = [after EXCEPT !.version = stored.version + 1]
                /\ told' = IF d.kind = "configure" THEN [told EXCEPT ![d.name] = d.value] ELSE told
                /\ follows' = [follows EXCEPT ![p] = Used(after)]
                /\ faults' = IF after.shards < stored.shards THEN faults \cup {"shards shrank"} ELSE faults
           ELSE UNCHANGED <<stored, told, follows, faults>>

Follow(p) ==
    /\ follows[p] # Used(stored)
    /\ follows' = [follows EXCEPT ![p] = Used(stored)]
    /\ UNCHANGED <<stored, doing, told, faults>>

Die(p) ==
    /\ doing[p] # Nothing
    /\ doing' = [doing EXCEPT ![p] = Nothing]
    /\ UNCHANGED <<stored, told, follows, faults>>

Next ==
    \E p \in Processes : \/ \E name \in Names, value \in Values : BeginCreate(p, name, value) \/ BeginConfigure(p, name, value)
                         \/ Write(p) \/ Follow(p) \/ Die(p)

Symmetry == Permutations(Processes)
Spec == Init /\ [][Next]_vars /\ \A p \in Processes : WF_vars(Follow(p))

AConfiguredOptionStays == \A n \in Names : told[n] # 0 => stored[n] = told[n]
ShardsNeverShrink == "shards shrank" \notin faults
EveryProcessFollows == <>[](\A p \in Processes : follows[p] = Used(stored))
====
