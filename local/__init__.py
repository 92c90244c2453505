"""The application on this machine alone: an embedded AWS emulator, and the deployment to it."""
