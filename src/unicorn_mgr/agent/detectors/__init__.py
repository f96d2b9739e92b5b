"""Detectors: pure functions from what is observed to a suspicion, one file each.

A detector has `observe(sample, now)`, which returns what it suspects or None.  It never
acts: the coordinator compares all members of a job before anything is done.
"""
