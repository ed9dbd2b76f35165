"""Measuring a serving deployment, keeping what was measured, and judging it beside other results."""
