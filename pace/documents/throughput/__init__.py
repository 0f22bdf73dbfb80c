"""Documents of throughput predictions: recorded steps, fleets, questions and answers."""
