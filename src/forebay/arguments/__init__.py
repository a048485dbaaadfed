"""What a handler takes: its kind, its signature, and the JSON that its arguments become."""
