"""Who gets which slots.

The seam is a pure function from a `Problem` to a `Plan`, in `planner`.  `simple` is what remains
when no solver answers: it keeps what runs, serves jobs in order of submission, and lets them grow
into what is free.
"""
