"""Rules about quantisation: what is stated against what is stored, and what the engine can compute."""
