"""Recordings of runs and their replays."""
