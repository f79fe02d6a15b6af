"""Coordinators: they turn a state into one joint plan, and a broken plan into a corrected one."""
