"""What studies share: hosts on one machine, training loops to compare, measuring, records and reports."""
