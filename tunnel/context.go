package tunnel

import (
	"context"
	"sync"
)

// After calls do, on a goroutine of its own, once ctx has ended. Until then it
// costs some 300 bytes and no goroutine. stop keeps do from being called, or
// waits until do has returned, so do must not call it. It may be called more than once,
// and from any goroutine.
func After(ctx context.Context, do func()) (stop func()) {
	var over sync.WaitGroup
	over.Add(1)
	cancel := context.AfterFunc(ctx, func() {
		defer over.Done()
		do()
	})
	return func() {
		if cancel() {
			over.Done()
		}
		over.Wait()
	}
}

// Closed reports whether c, on which nothing is ever sent, is closed. Any goroutine
// may ask at any time.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
