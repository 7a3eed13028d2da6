"""Recordings of runs: every event of a Scheduler in a file, and the same run again from it."""
