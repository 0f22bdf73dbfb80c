"""How frameworks group gradients, and what to tell them: bucket lists, sizes, the field's own rules."""
