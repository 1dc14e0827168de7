"""Python parts of Scalewright: the text worker (tokenizer and chat template of the model, run by transformers)."""
