"""Events in, instructions out: the owner of all run state; pure."""
