"""Documents of predictions: fleets of workers, options and answers."""
