"""The very code that runs a cluster, in virtual time: its cores, its planner, its deal.

Only what is outside of them is imitated: time, network, machines, processes, storage.  See `docs/simulation.md`.
"""
