"""How rows and tables name a class."""

import re


def snake_case(name: str) -> str:
    """A class name in snake case: "ExactMatch" gives "exact_match"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
