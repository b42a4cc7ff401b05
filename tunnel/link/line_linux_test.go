package link_test

import (
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// The kernel counts what comes, of which a peer's process need not know: it acknowledges.
func TestAcknowledgementsAreReceived(t *testing.T) {
	r := tcpRig(t, true, link.Config{})
	before := r.ses.Line().Received
	r.ses.Probe()
	testutil.Eventually(t, "a segment has come", func() bool { return r.ses.Line().Received != before })
}
