"""One module or package a study; ``python -m benchmarks`` lists them."""
