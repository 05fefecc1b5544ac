"""Findings and rules for people and for other tools."""
