"""Who gets which slots.

`planner.plan` answers a `problem.Problem` with a `problem.Plan`: the value of each size (`choices`),
sizes (`knapsack` bounds and reduces, `core` and `ilp` solve, `sizing` keeps the time), places
(`placement`, and `packing` where that finds no room), reasons in words.  `table` foresees the next
problems, `serve` is the process that solves, and `simple` answers where no solver can.
"""
