"""Rules about the values of small tensors."""
