"""The Daytona API over Holdfast's boxes, for programs written for the Daytona SDK. See docs/daytona-api.md."""
