"""The scenarios, one module each: run(place, options, progress) returns a Report."""
