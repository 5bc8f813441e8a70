"""The page and the service: search both ways in a browser, and over HTTP."""
