"""The fabric over HTTP: questions, routes, documents, a client, and a view of the web page."""
