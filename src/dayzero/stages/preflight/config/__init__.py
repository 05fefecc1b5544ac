"""Rules about the config: its lists, its spellings, its rotary positions, and who reads which key."""
