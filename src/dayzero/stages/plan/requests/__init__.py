"""Who asks: requests that arrive at random, servers that answer them, workers apart."""
