"""Runs a model without values and writes down what it runs."""
