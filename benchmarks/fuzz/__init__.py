"""Random small problems of every shape, solved, judged and held against optima found in another way."""
