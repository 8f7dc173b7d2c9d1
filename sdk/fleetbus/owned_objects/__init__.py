"""Objects of ours in other clusters: whose an object is, what may be done with it, and doing it.

`claim`, `decision` and `force` compute; only `executor` sends, with the preconditions that tie each
write to the object that was decided about. `refusal` and `secret_values` read what servers answer.
`Children` and the distributor are policies on top.
"""
