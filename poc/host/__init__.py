"""What this machine has, what it does during a run, and the processes on it."""
