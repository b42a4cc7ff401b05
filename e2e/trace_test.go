package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// traced is a suite whose programs tell everything, and have admin ports.
type traced struct {
	*whole
	socksAt, httpsAt string // admin ports of the sidecars
}

func newTraced(t *testing.T, link string) *traced {
	t.Helper()
	w := &traced{socksAt: testutil.ReservedAddress(t), httpsAt: testutil.ReservedAddress(t)}
	debug, mode := "--log-level=debug", "--link="+link
	w.whole = newWholeOf(t, flags{
		server: []string{debug, "--server-id=server-1"}, agent: []string{debug, mode, "--agent-id=agent-1"}, sidecars: []string{debug, mode},
		socks: []string{"--admin-address=" + w.socksAt}, https: []string{"--admin-address=" + w.httpsAt},
	})
	return w
}

// clientSpan is that of clients that send a traceparent.
const clientSpan = "00f067aa0ba902b7"

func traceparent(id string) (header string) {
	return "traceparent: 00-" + id + "-" + clientSpan + "-01\r\n"
}

// idsOf are the ids of all lines of a log with a message; "" is any.
func idsOf(p *suite.Process, message string) (ids []string) {
	for line := range strings.Lines(p.Output()) {
		var fields struct{ ID, Msg string }
		if json.Unmarshal([]byte(line), &fields) == nil && (message == "" || fields.Msg == message) && fields.ID != "" {
			ids = append(ids, fields.ID)
		}
	}
	return ids
}

// logs waits until every process has a line with the id.
func (w *traced) logs(t *testing.T, id string, all ...*suite.Process) {
	t.Helper()
	for _, p := range all {
		eventually(t, patience, fmt.Sprintf("a line of %s with the id %s", p.Name, id), func() (bool, any) {
			return slices.Contains(idsOf(p, ""), id), "\n" + p.Output()
		})
	}
}

// shown wants konnectivity status to show one connection at every hop.
func (w *traced) shown(t *testing.T, id string, at ...string) {
	t.Helper()
	eventually(t, patience, "status of every hop has "+id, func() (bool, any) {
		out, err := command(t, nil, w.Bin.Path("konnectivity"), append([]string{"status", "--filter=" + id}, at...)...)
		return err == nil && strings.Count(out, id) >= len(at), "\n" + out
	})
}

// One id stands in the log of every hop and in the status of each, by links and
// by the old protocols; where it comes from a traceparent it is that.
func TestOneIDOnEveryHop(t *testing.T) {
	for _, mode := range []string{"auto", "off"} {
		t.Run("link "+mode, func(t *testing.T) {
			w := newTraced(t, mode)
			target := echoTarget(t)
			server, agent := suite.Loopback(w.server.AdminPort), agentAt(w.agent)

			const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
			c := must(net.Dial("tcp", w.https.Address()))(t)
			defer c.Close()
			testutil.NoError(t, connect(c, target, traceparent(trace)))
			w.shown(t, trace, w.httpsAt, server, agent)
			c.Close()
			w.logs(t, trace, w.https.Process, w.server.Process, w.agent.Process)

			// The SOCKS5 sidecar makes the id, since SOCKS5 has no room for one.
			testutil.NoError(t, echoOnce(viaSOCKS5(w.socks.Address()), target).err)
			made := ""
			eventually(t, patience, "a line of the SOCKS5 sidecar", func() (bool, any) {
				ids := idsOf(w.socks.Process, "connection ended")
				if len(ids) > 0 {
					made = ids[0]
				}
				return made != "", w.socks.Output()
			})
			w.logs(t, made, w.socks.Process, w.server.Process, w.agent.Process)

			// kube-apiserver's CONNECT, with and without a trace.
			const direct = "0af7651916cd43dd8448eb211c80319c"
			uds := must(net.Dial("unix", w.server.UDS))(t)
			testutil.NoError(t, connect(uds, target, traceparent(direct)))
			uds.Close()
			w.logs(t, direct, w.server.Process, w.agent.Process)

			// kube-apiserver's gRPC: the server makes it.
			known := map[string]bool{trace: true, made: true, direct: true}
			testutil.NoError(t, try(t, viaGRPC(w.server.UDS), target))
			eventually(t, patience, "the agent knows the server's id", func() (bool, any) {
				ids := idsOf(w.server.Process, "connection ended")
				ids = slices.DeleteFunc(ids, func(id string) bool { return known[id] || !slices.Contains(idsOf(w.agent.Process, ""), id) })
				return len(ids) > 0, w.server.Output()
			})
		})
	}
}
