"""From a traced declaration to an immutable Plan; pure, runs once."""
