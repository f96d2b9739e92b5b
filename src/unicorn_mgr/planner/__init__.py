"""Who gets which slots.

The seam is `Policy`: a pure function from a `Problem` to a `Plan`.  `simple` is the policy
in use: it keeps what runs, serves jobs in order of submission, and lets them grow into what
is free.
"""
