"""An OpenAI-compatible endpoint: any harness drives the model by text, and what trains is what was sampled.

| file | duty |
|---|---|
| ``serving`` | listens: ``serve`` |
| ``http`` | the HTTP face, routes and headers |
| ``chat``, ``responses``, ``reading`` | reading calls of the two APIs and writing their answers |
| ``core``, ``desk``, ``writing`` | calls become committed turns |
| ``sessions`` | the sessions, as a fold over the events |
| ``journal`` | where the events are kept |
"""
