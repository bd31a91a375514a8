"""One OpenAI-compatible server: the client, its stream reader, what can go wrong, and the check before a run.

Everything foreign (openai, httpx2, aiohttp, a provider's JSON) is translated here into records and errors of ours.
"""
