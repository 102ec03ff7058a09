"""What the encoders share and nobody else needs: typed dataclasses, rank helpers, checks."""
