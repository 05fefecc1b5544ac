"""Further ways to serve that a search tries: arrivals, workers apart, weights outside the device, precisions."""
