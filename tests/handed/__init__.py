"""The handed-over cases, each of the whole kind."""
