"""The guard: who keeps old rows and segments from being cleared, and what a rule does about it."""
