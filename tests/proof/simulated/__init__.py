"""Schedules of the simulator: workflows, faults and invariants, all from a seed."""
