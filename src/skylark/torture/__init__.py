"""Torture: real servers and clients under faults, and a checker of what they promised. One loop."""
