"""Weighted means of several workers' updates: of fixed members, and of groups that change."""
