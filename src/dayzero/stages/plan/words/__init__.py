"""A plan as words, tables and the JSON of the contract."""
