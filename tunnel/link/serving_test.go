package link_test

import (
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// What a server says of its agents comes with HELLO and changes by INFO; one of
// before says nothing.
func TestServingIsToldAndChanges(t *testing.T) {
	none := link.Serving{Told: true, Why: "no connection to any proxy agent"}
	near, far := tcpPair(t)
	client, server := sessions(t, near, far, link.Config{Hello: link.Hello{Role: link.RoleClient}},
		link.Config{Hello: link.Hello{Role: link.RoleServer, ServerCount: 3, Serving: none}})
	testutil.Equal(t, client.Serving(), none, "what HELLO told")
	testutil.Equal(t, client.ServerCount(), 3, "servers")
	testutil.Equal(t, server.Serving().Told, false, "a client tells of agents")
	server.SetServing(link.Serving{Told: true})
	testutil.Eventually(t, "the news", func() bool { return client.Serving() == link.Serving{Told: true} })
	server.SetServerCount(5) // an INFO that says nothing of agents changes nothing
	testutil.Eventually(t, "another count", func() bool { return client.ServerCount() == 5 })
	testutil.Equal(t, client.Serving(), link.Serving{Told: true}, "after news of something else")
	testutil.Equal(t, client.ServerCount(), 5, "servers")
	server.SetServing(link.Serving{Told: true, Why: strings.Repeat("x", 1<<20)})
	testutil.Eventually(t, "a long reason, cut", func() bool { n := len(client.Serving().Why); return n > 0 && n <= 1<<11 })
	testutil.Succeeds(t, client.Err(), "the link")
	testutil.Equal(t, client.ServerCount(), 5, "servers")
}
