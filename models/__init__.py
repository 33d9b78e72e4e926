"""The bundled pair of models and everything that made it: corpus, tokenizer, training, cards."""
