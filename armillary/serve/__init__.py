"""The server: one world behind one OpenAI-shaped API, safe by default. Needs the `serve` extra."""
