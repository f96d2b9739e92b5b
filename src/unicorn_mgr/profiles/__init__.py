"""How fast a job runs on each number of slots: T(job, x), for the planner.

Read `profile` first: a `Profile` says useful FLOP/s per allowed size, and where each figure is
from.  Three sources, best first, lie over one another (`profile.combined`):

    measured    step times of the job itself, robust to noise       measured.py
    given       a table in the job file                             profile.given
    predicted   a model of a step, fitted to published runs         predict.py, fitted.py

`sizes` says which sizes a job may have; `shape` describes a model, its layout and its memory;
`devices` knows device types.  All is pure and deterministic: the same input, the same figures.
"""
