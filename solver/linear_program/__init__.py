"""The PACE paper's linear program over slots: for HiGHS, through PuLP, and written out for audit."""
