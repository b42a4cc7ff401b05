package tunnel

// Closed says whether a channel is closed on which nothing is ever sent, so
// what it stands for has happened. Any goroutine may ask at any time.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
