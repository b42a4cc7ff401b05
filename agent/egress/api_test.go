package egress

import (
	"fmt"
	"testing"

	"konnectivity/internal/policy"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// An agent beside the API server reaches nothing else. Of several addresses, one that works
// is enough.
func TestBesideTheAPIServer(t *testing.T) {
	up := fmt.Sprintf("127.0.0.1:%d", echo(t, "127.0.0.1", 0))
	d := New(Options{APIServers: []string{testutil.ReservedAddress(t), up}})
	api := tunnel.NewFlow(link.NetworkAPI, link.APIAddress)
	for range 10 {
		c := testutil.Must(d.Dial(testutil.Context(t), api))(t)
		got := c.RemoteAddr().String()
		testutil.Holds(t, got == up && api.Resolved == up, "it is connected to %s, and says %s", got, api.Resolved)
		testutil.Succeeds(t, d.Allow(api, c.RemoteAddr()), "it may not be resumed")
		_ = c.Close()
	}
	tcp := tunnel.NewFlow("tcp", up)
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(d.Dial(testutil.Context(t), tcp))), tunnel.FailDenied, "another network")
	testutil.Equal(t, tunnel.FailureOf(d.Allow(tcp, tunnel.Addr{Net: "tcp", Text: up})), tunnel.FailDenied, "another network, handed over")
	node := New(Options{})
	wantFailure(t, testutil.Err(node.Dial(testutil.Context(t), api)), tunnel.FailBadAddress)
	wantFailure(t, node.Allow(api, tunnel.Addr{Net: "tcp", Text: up}), tunnel.FailBadAddress)
}

// The policy of the flags holds beside the API server as well.
func TestThePolicyHoldsBesideTheAPIServer(t *testing.T) {
	up := fmt.Sprintf("127.0.0.1:%d", echo(t, "127.0.0.1", 0))
	rules := testutil.Must(policy.Parse(nil, []string{"127.0.0.0/8"}))(t)
	d := New(Options{APIServers: []string{up}, Policy: rules})
	api := tunnel.NewFlow(link.NetworkAPI, link.APIAddress)
	testutil.Equal(t, tunnel.FailureOf(testutil.Err(d.Dial(testutil.Context(t), api))), tunnel.FailDenied, "it is dialed")
	testutil.Equal(t, tunnel.FailureOf(d.Allow(api, tunnel.Addr{Net: "tcp", Text: up})), tunnel.FailDenied, "it is resumed")
}
