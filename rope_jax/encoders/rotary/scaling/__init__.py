"""Frequency maps for RoPE, one a file."""
