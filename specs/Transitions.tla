---- MODULE Transitions ----
\* Written by `python -m local.prove --transitions` from TRANSITIONS in model/task.py.
EXTENDS TLC

\* The statuses that each verb needs, and those that it may set.
Transitions ==
    ("claim" :> <<{"PENDING"}, {"TAKEN"}>>)
    @@ ("complete" :> <<{"TAKEN"}, {"SUCCESS"}>>)
    @@ ("fail" :> <<{"TAKEN"}, {"FAILURE"}>>)
    @@ ("retry" :> <<{"TAKEN"}, {"FAILURE", "PENDING"}>>)
    @@ ("release" :> <<{"TAKEN"}, {"PENDING"}>>)
    @@ ("extend" :> <<{"TAKEN"}, {"TAKEN"}>>)
    @@ ("recover" :> <<{"TAKEN"}, {"FAILURE", "PENDING"}>>)
    @@ ("promote" :> <<{"PENDING"}, {"PENDING"}>>)
    @@ ("cancel" :> <<{"PENDING"}, {"CANCELLED"}>>)
    @@ ("reprioritize" :> <<{"PENDING"}, {"PENDING"}>>)
    @@ ("redrive" :> <<{"FAILURE"}, {"PENDING"}>>)
    @@ ("shed" :> <<{"PENDING"}, {"SHED"}>>)
    @@ ("shed claimed" :> <<{"TAKEN"}, {"SHED"}>>)
    @@ ("claim dead" :> <<{"FAILURE"}, {"TAKEN"}>>)
    @@ ("cancel as dead" :> <<{"PENDING"}, {"FAILURE"}>>)
    @@ ("redrive as new" :> <<{"FAILURE", "PENDING"}, {"PENDING"}>>)
    @@ ("cancel by force" :> <<{"PENDING", "TAKEN"}, {"CANCELLED"}>>)
    @@ ("cancel as dead by force" :> <<{"PENDING", "TAKEN"}, {"FAILURE"}>>)
    @@ ("redrive by force" :> <<{"FAILURE", "PENDING", "TAKEN"}, {"PENDING"}>>)

\* The new status after a verb; an error of the specification if the code has no such transition.
Follow(verb, from, to) ==
    IF from \in Transitions[verb][1] /\ to \in Transitions[verb][2] THEN to
    ELSE Assert(FALSE, <<"no such transition", verb, from, to>>)
====
