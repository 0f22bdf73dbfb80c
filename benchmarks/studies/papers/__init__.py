"""The results of the papers that PACE builds on, enacted again in the simulator."""
