"""Measured runs: the rows of an order, with the times that were measured, step by step."""
