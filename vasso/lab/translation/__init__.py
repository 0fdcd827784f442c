"""From one language to another: corpora, pieces of words, a transformer, beam search, BLEU."""
