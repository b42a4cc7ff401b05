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
	httpsAt, health string // the HTTPS sidecar's admin and health ports
	chain           func(trace, parent string) []otlpSpan
}

func newTraced(t *testing.T, link string) *traced {
	t.Helper()
	w := &traced{httpsAt: testutil.ReservedAddress(t), health: testutil.ReservedAddress(t)}
	collector, chain := collect(t)
	w.chain = chain
	all := []string{"--log-level=debug", "--audit-log=-", "--traces-endpoint=" + collector}
	linked := append(slices.Clone(all), "--link="+link)
	w.whole = newWholeOf(t, flags{
		server: append(slices.Clone(all), "--server-id=server-1", "--deny-destination=denied.example"), agent: append(slices.Clone(linked), "--agent-id=agent-1"),
		sidecars: linked, https: []string{"--admin-address=" + w.httpsAt, "--health-address=" + w.health},
	})
	return w
}

// clientSpan is that of clients that send a traceparent.
const clientSpan = "00f067aa0ba902b7"

func traceparent(id string) (header string) {
	return "traceparent: 00-" + id + "-" + clientSpan + "-01\r\n"
}

// idsOf are the ids of all lines of a log with a message, which audit records have not; "" is any.
func idsOf(p *suite.Process, message string) (ids []string) {
	for line := range strings.Lines(p.Output()) {
		var fields struct{ ID, Msg string }
		if json.Unmarshal([]byte(line), &fields) == nil && fields.Msg != "" && (message == "" || fields.Msg == message) && fields.ID != "" {
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

// otherFronts has connections come by the other fronts, beside a known one.
func (w *traced) otherFronts(t *testing.T, target, known string) {
	t.Helper()
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
	// kube-apiserver's CONNECT may have a trace.
	const direct = "0af7651916cd43dd8448eb211c80319d"
	uds := must(net.Dial("unix", w.server.UDS))(t)
	testutil.NoError(t, connect(uds, target, traceparent(direct)))
	uds.Close()
	w.logs(t, direct, w.server.Process, w.agent.Process)
	// kube-apiserver's gRPC: the server makes it.
	testutil.NoError(t, try(t, viaGRPC(w.server.UDS), target))
	eventually(t, patience, "the agent knows the server's id", func() (bool, any) {
		ids := idsOf(w.server.Process, "connection ended")
		ids = slices.DeleteFunc(ids, func(id string) bool {
			return slices.Contains([]string{known, made, direct}, id) || !slices.Contains(idsOf(w.agent.Process, ""), id)
		})
		return len(ids) > 0, w.server.Output()
	})
}
