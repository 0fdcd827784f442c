"""Machine translation: corpora, byte-pair encoding, a transformer, beam search."""
