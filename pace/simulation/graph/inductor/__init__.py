"""Inductor's overlap pass of torch 2.13, re-enacted on the arrays of a program."""
