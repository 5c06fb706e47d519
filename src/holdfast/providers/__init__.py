"""Providers: each makes boxes of one kind. One module or folder each; nothing above names one but the registry."""
