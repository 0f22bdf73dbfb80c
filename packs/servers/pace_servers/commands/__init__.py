"""Commands: ``pace predict``, ``pace fit-overhead``, and imports of steps documents."""
