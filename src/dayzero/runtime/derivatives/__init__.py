"""Gradients of a release in any layout: against finite differences, with activations recomputed, over a few steps."""
