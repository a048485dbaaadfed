"""Six sinks drain one queue, while one of them is killed, one loses messages, and one is slow."""
