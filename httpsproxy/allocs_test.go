package httpsproxy

import (
	"testing"

	"konnectivity/internal/allocs"
	"konnectivity/internal/logging"
)

// The line about a request costs nothing where nobody reads it.
func TestSilentLineAllocatesNothing(t *testing.T) {
	s := &Server{opts: Options{Log: logging.Discard()}}
	a := &access{kind: kindConnect, destination: "a:1", id: "id"}
	allocs.AtMost(t, 0, func() { s.log(a) })
}
