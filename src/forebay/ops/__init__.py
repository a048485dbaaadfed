"""Operations without I/O: what is checked, encoded and decoded around each call."""
