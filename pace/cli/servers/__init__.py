"""What the commands do with parameter servers: their options, plans, simulations and what-ifs."""
