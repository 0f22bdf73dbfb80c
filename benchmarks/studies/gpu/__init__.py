"""What ``scripts/gpu-check`` runs on a machine with an NVIDIA GPU; every part in a process of its own.

``__main__`` starts the parts and writes the results; it and the modules it imports use the standard library
alone, so that a package that is missing fails the parts that need it and nothing else.
"""
