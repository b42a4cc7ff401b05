package httpsproxy

import (
	"testing"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

// The line about a request costs nothing where nobody reads it.
func TestSilentLineAllocatesNothing(t *testing.T) {
	s := &Server{opts: Options{Log: logging.Discard()}}
	a := &access{kind: kindConnect, destination: "a:1", id: "id"}
	testutil.MaxAllocs(t, 0, func() { s.log(a) })
}
