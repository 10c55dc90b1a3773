"""Memory that the ranks of a host share, and stretches of arrays."""
