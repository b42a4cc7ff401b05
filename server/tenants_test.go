package server

import (
	"fmt"
	"sync"
	"testing"

	"konnectivity/tunnel"
)

// Tenants come and go while their clients, and those of another, ask.
func TestTenantsChangeUnderLoad(t *testing.T) {
	s := startSharers(t)
	stays := s.add("stays", "")
	comes := &sharer{of: s, name: "comes", ca: stays.ca, cert: stays.cert}
	answers := func(c *sharer) bool { return s.asked(secureFor(c.serverName(), c.cert, "http/1.1")) }
	s.eventually("the tenant", func() bool { return answers(stays) })
	var asking sync.WaitGroup
	stop := make(chan struct{})
	for _, c := range []*sharer{stays, comes} {
		asking.Go(func() {
			for !tunnel.Closed(stop) {
				if !answers(c) && c == stays {
					t.Error("it is not served while another comes and goes")
					return
				}
			}
		})
	}
	for i := range 10 {
		comes.write(fmt.Sprintf("bounds: {connections: %d}", i+1))
		if !answers(comes) {
			t.Error("one that has come is not served")
		}
		comes.remove()
		if answers(comes) {
			t.Error("one that was removed is served")
		}
	}
	close(stop)
	asking.Wait()
	if n := len(s.tenants.states()); n != 1 {
		t.Errorf("%d states", n)
	}
}
