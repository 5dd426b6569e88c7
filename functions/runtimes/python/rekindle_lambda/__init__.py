"""The Lambda runtime for Python: `life` is what happens from start to end."""
