"""Constants that recorded measurements fit: rates of the time model, and spread from run to run."""
