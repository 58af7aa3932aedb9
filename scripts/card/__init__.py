"""The card: what each GPU of a machine reaches against what others of its model reach, with a verdict."""
