"""The demo: real flight records through a broker of its own, every message accounted for."""
