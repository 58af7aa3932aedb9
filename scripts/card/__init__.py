"""The card: the rates of each GPU of a machine compared with other GPUs of its model, with a verdict."""
