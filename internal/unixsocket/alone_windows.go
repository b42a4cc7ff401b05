package unixsocket

// alone does nothing: folders cannot be locked here.
func alone(string) (letIn func()) { return func() {} }
