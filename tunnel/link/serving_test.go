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
	if got := client.Serving(); got != none || client.ServerCount() != 3 {
		t.Errorf("HELLO told %+v, of %d servers", got, client.ServerCount())
	}
	if got := server.Serving(); got.Told {
		t.Errorf("a client told %+v", got)
	}
	server.SetServing(link.Serving{Told: true})
	testutil.Eventually(t, "the news", func() bool { return client.Serving() == link.Serving{Told: true} })
	server.SetServerCount(5) // an INFO that says nothing of agents changes nothing
	testutil.Eventually(t, "another count", func() bool { return client.ServerCount() == 5 })
	if got := client.Serving(); got != (link.Serving{Told: true}) || client.ServerCount() != 5 {
		t.Errorf("after news of something else: %+v", got)
	}
	server.SetServing(link.Serving{Told: true, Why: strings.Repeat("x", 1<<20)})
	testutil.Eventually(t, "a long reason, cut", func() bool { n := len(client.Serving().Why); return n > 0 && n <= 1<<11 })
	if client.Err() != nil || client.ServerCount() != 5 {
		t.Errorf("the link: %v, %d servers", client.Err(), client.ServerCount())
	}
}
