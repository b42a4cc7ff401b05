package httpsproxy

import (
	"testing"

	"konnectivity/internal/front"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// The line about a request costs nothing where nobody reads it.
func TestSilentLineAllocatesNothing(t *testing.T) {
	s := &Server{Shell: &front.Shell[*client]{Options: front.Options{Log: logging.Discard()}}}
	r := &record{kind: kindConnect, flow: &tunnel.Flow{Request: tunnel.Request{ID: "id", Address: "a:1"}}}
	testutil.MaxAllocs(t, 0, func() { s.log(r) })
}
