"""Rules about an engine's limits and kernel branches."""
