"""Rules about files: all there, whole, and listed."""
