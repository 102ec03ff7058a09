"""Encoders that add to the input."""
