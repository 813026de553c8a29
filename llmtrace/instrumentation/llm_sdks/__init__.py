"""How are the OpenAI and Anthropic SDKs recorded, and what do their answers carry?"""
