"""What the routes of the Daytona API share: requests, errors, WebSockets."""
