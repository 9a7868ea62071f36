"""The host of a run: its hardware, its use during the run, and the processes on it."""
