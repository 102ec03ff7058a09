"""Encoders that rotate queries and keys."""
