"""Deployments on a real server, run by a real worker."""
