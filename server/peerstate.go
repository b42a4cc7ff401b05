package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"konnectivity/internal/admin"
	"konnectivity/server/reach"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// maxState is how much of another server's state is read, in bytes: that of some 40,000
// tenants.
const maxState = 16 << 20

// tellState tells the other server how this one is.
func (w *forwarded) tellState(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	near, far := net.Pipe()
	var telling sync.WaitGroup
	f.AtEnd(func() {
		_ = far.Close()
		telling.Wait()
		w.tells.Store(false)
	})
	telling.Go(func() {
		_, _ = far.Write(w.server.site.State(ctx))
		_ = far.Close()
	})
	(&tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		return tunnel.Wrap(near), nil
	})}).Serve(ctx, f, answer, ended)
}

// count is how many other servers are linked, and how many keys of their agents are
// known, which two links to one server tell both.
func (p *peering) count() (servers, known int) {
	links := p.newest()
	for _, l := range links {
		known += p.Routes(l).Routes
	}
	return len(links), known
}

// unlinked lists the addresses of other servers that could not be linked.
func (p *peering) unlinked() (out []admin.Unlinked) {
	failing := p.Failing()
	for _, at := range slices.SortedFunc(maps.Keys(failing), netip.AddrPort.Compare) {
		out = append(out, admin.Unlinked{Address: at.String(), Cause: failing[at].Error()})
	}
	return out
}

// others asks the other servers how they are, each by its newest link.
func (p *peering) others(ctx context.Context) []admin.Member {
	links := p.newest()
	all := make([]admin.Member, len(links))
	var asking sync.WaitGroup
	for i, l := range links {
		asking.Go(func() {
			all[i] = admin.Member{ID: l.Peer().ID, Remote: l.Remote}
			var err error
			if all[i].State, err = askState(ctx, l); err != nil {
				all[i].Error = err.Error()
			}
		})
	}
	asking.Wait()
	for _, u := range p.unlinked() {
		all = append(all, admin.Member{Remote: u.Address, Error: "there is no link to it: " + u.Cause})
	}
	return all
}

// askState asks another server how it is, until ctx ends.
func askState(ctx context.Context, l *reach.Link) (*admin.State, error) {
	state := new(admin.State)
	conn, err := l.Dial(ctx, tunnel.NewFlow(link.NetworkState, l.Remote))
	if err == nil {
		defer conn.Close()
		defer tunnel.After(ctx, func() { _ = conn.Close() })()
		var told []byte
		if told, err = io.ReadAll(io.LimitReader(conn, maxState)); err == nil {
			err = json.Unmarshal(told, state)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, errors.New("it does not tell its state in time")
	case err != nil:
		return nil, fmt.Errorf("its state is not known: %w", err)
	}
	return state, nil
}

// sorted are the links to other servers, by id and then by age.
func (p *peering) sorted() []*reach.Link {
	links := p.Links()
	slices.SortFunc(links, func(a, b *reach.Link) int {
		return cmp.Or(strings.Compare(a.Peer().ID, b.Peer().ID), a.Since.Compare(b.Since))
	})
	return links
}

// newest are the newest link to each other server, by its id.
func (p *peering) newest() []*reach.Link {
	links := p.sorted()
	slices.Reverse(links) // the newest of a server first, which Compact leaves
	links = slices.CompactFunc(links, func(a, b *reach.Link) bool { return a.Peer().ID == b.Peer().ID })
	slices.Reverse(links)
	return links
}

// addTo lists the links to other servers.
func (p *peering) addTo(out []admin.Peer) []admin.Peer {
	if p == nil {
		return out
	}
	for _, l := range p.sorted() {
		v := admin.Peer{Role: admin.RoleServer, Remote: l.Remote, Since: admin.Past{Time: l.Since},
			Draining: l.Drains().Happened(), Identifiers: fmt.Sprintf("%d agents", p.Routes(l).Agents)}
		v.Linked(l.Peer(), l.Heard(), l.Stats())
		out = append(out, v)
	}
	return out
}
