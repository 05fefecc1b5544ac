"""Rules about code that a release ships, and about versions of what has to run it."""
