"""What can be asked of the service, one module for each kind of question. ``all_kinds`` finds them."""
