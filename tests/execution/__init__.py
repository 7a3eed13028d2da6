"""Tests of the execution layer, in-process and on real Ray."""
