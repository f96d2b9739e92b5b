"""Who gets which slots.

`planner.plan` answers a `problem.Problem` with a `problem.Plan`: the value of each size (`choices`),
sizes (`knapsack` and `prices` bound and reduce, `core` and `ilp` solve, `sizing` has them take turns),
places (`placement`, and `packing` where that finds no room), reasons in words.  All of them look at one
`deadline`.  `table` foresees the next
problems, `serve` is the process that solves, and `simple` answers where no solver can.
"""
