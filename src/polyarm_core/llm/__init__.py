"""Language models of the arms: one small interface, interchangeable backends, a server that shares one copy."""
