package tunnel

// Closed says whether a channel on which nothing is ever sent is closed: what
// it tells of has happened. Any goroutine may ask at any time.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
