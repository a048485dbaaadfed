"""Operations without I/O: the checks, encoding and decoding around each call."""
