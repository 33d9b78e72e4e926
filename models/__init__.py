"""The bundled models and everything that made them: corpus, tokenizer, training, cards."""
