"""One module a system: `run(job, ray_folder, **options)` does the work and returns the figures,
`SETTINGS` says how the system is set up and after which advice of its documentation."""
