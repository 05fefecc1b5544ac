"""Rules about tensors: all there, once, of the shape and dtype that config, neighbours and engine expect."""
