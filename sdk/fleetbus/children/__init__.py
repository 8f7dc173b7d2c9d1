"""The `Children` controller: parent objects in some clusters, their children in others."""
