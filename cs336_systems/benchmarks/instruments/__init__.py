"""Instruments of the card: each lists the works that it times, and what a repetition of a work comes to."""
