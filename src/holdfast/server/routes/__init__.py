"""The REST routes, one module for each noun, with the types that their OpenAPI document shows."""
