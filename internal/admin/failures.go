package admin

import (
	"slices"
	"strings"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// KeptFailures is the number of failures kept without a tenant: enough to show a
// pattern, and 64 KiB at most in practice. Each tenant keeps some of its own, so that
// one cannot displace those of others: fewer if many tenants have failures, but one at
// least.
const (
	KeptFailures  = 200
	keptOfATenant = 20
	keptOfTenants = 4000 // of all tenants together, 6 MiB at most
)

// maxText bounds each text of a failure in bytes: a client may ask for a destination of
// any length.
const maxText = 300

// failures holds the latest failures. Each list is in order.
type failures struct {
	mu    sync.Mutex
	lists map[string][]numbered // by tenant, of those with failures; "": without a tenant, which counts as one
	n     int                   // of all, so far
}

// numbered is a failure with its position among all.
type numbered struct {
	Failure
	number int
}

// latest drops all but the last failures of a list.
func latest(list []numbered, kept int) []numbered {
	return slices.Delete(list, 0, max(0, len(list)-kept))
}

func (f *failures) add(one Failure) {
	for _, text := range []*string{&one.ID, &one.Source, &one.Destination, &one.Next, &one.Cause} {
		if len(*text) > maxText {
			*text = strings.ToValidUTF8((*text)[:maxText], "") + "…"
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	if f.lists[one.Tenant] == nil {
		f.addTenant(one.Tenant)
	}
	f.lists[one.Tenant] = latest(append(f.lists[one.Tenant], numbered{one, f.n}), f.kept(one.Tenant))
}

// addTenant makes room for another tenant by trimming the rest to their smaller share.
func (f *failures) addTenant(tenant string) {
	if f.lists == nil {
		f.lists = make(map[string][]numbered)
	}
	before := f.kept(tenant)
	f.lists[tenant] = []numbered{}
	if f.kept(tenant) < before {
		for name, list := range f.lists {
			f.lists[name] = slices.Clone(latest(list, f.kept(name))) // which frees the memory
		}
	}
}

// kept is the number of failures that are kept of a tenant.
func (f *failures) kept(tenant string) int {
	if tenant == "" {
		return KeptFailures
	}
	return max(1, min(keptOfATenant, keptOfTenants/max(1, len(f.lists))))
}

// forget drops the failures of a tenant.
func (f *failures) forget(tenant string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.lists, tenant)
}

// list returns a copy of the failures of a tenant, or of all for "", newest first.
func (f *failures) list(tenant string) []Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []numbered
	for name, list := range f.lists {
		if tenant == "" || tenant == name {
			all = append(all, list...)
		}
	}
	sortBy(all, func(a, b *numbered) int { return b.number - a.number })
	out := make([]Failure, len(all))
	for i, one := range all {
		out[i] = one.Failure
	}
	return out
}

func newFailure(f *tunnel.Flow, took time.Duration) Failure {
	out := Failure{Time: Past{time.Now()}, Tenant: f.Tenant(), ID: f.ID, Front: f.Front, Destination: f.Address, Next: f.Hop.String(), Seconds: took.Seconds()}
	if f.Source != nil {
		out.Source = f.Source.String()
	}
	return out
}

// dialFailure describes a dial with the words that its client was told: the underlying
// error may contain secrets.
func dialFailure(f *tunnel.Flow, took time.Duration, err *tunnel.DialError) Failure {
	out := newFailure(f, took)
	out.Stage, out.Failure, out.Cause, out.Hint = "dial", err.Failure.Label(), err.Text(), Hint(err.Failure)
	if f.Front == "api" && err.Failure == tunnel.FailUnavailable {
		out.Hint = "Run konnectivity check --api on the node."
	}
	return out
}

// connectionFailure describes a connection that ended for a reason within the tunnel,
// or returns false: resets by either end are ordinary.
func connectionFailure(f *tunnel.Flow, took time.Duration, err error) (out Failure, ok bool) {
	if err == nil {
		return out, false
	}
	code := tunnel.CodeOf(err)
	hint, ok := resetHints[code]
	if !ok {
		return out, false
	}
	out = newFailure(f, took)
	out.Stage, out.Failure, out.Cause, out.Hint = "connection", code.Label(), code.String(), hint
	return out, true
}

// resetHints has the reported codes, with what to do about each.
var resetHints = map[tunnel.Code]string{
	tunnel.CodeTimeout:  "Nothing was sent for longer than --idle-timeout allows; clients that mean to wait should use keepalives.",
	tunnel.CodeStalled:  "Its reader took nothing while a peer without flow control went on sending. Update that peer to one with native links.",
	tunnel.CodeLost:     "A link or an agent on the way was lost, and no other way led to its other end in time. Look at that process's log, and at the network in between.",
	tunnel.CodeShutdown: "A process on the way was stopped. If that was a rollout, its grace period was shorter than the connection.",
	tunnel.CodeGone:     "The process at its other end was stopped. If that was a rollout, its grace period was shorter than the connection.",
	tunnel.CodeProtocol: "Two processes disagree on the protocol. Compare their versions.",
	tunnel.CodePolicy:   "A policy file, a CA, a revocation list or a tenant has changed since it was made. konnectivity policy explain says which rule decides.",
	tunnel.CodeMemory:   "Readers do not keep up and received bytes fill the budget. Look for stalled connections, or raise the memory budget.",
}

// Hint says what an operator can do about a failed dial; "" if nothing is known.
func Hint(f tunnel.Failure) string { return dialHints[f] }

var dialHints = map[tunnel.Failure]string{
	tunnel.FailInternal:    "Look at the logs of every hop for the connection's id.",
	tunnel.FailRefused:     "The destination's machine answered that nothing listens on this port. Check the port, and that the program runs.",
	tunnel.FailTimeout:     "No answer came. A firewall or network policy may drop packets between agent and destination, or the agent hangs.",
	tunnel.FailHostUnreach: "The agent's network has no route to the host. Check routes, and that the agent sits in the right network.",
	tunnel.FailNetUnreach:  "The agent's network has no route to that network, or no address of that family (IPv4 or IPv6).",
	tunnel.FailNoSuchHost:  "The name does not exist where it was looked up. Check its spelling, and which DNS is asked.",
	tunnel.FailResolve:     "DNS did not answer. Check the DNS service where the name is looked up: the guest cluster's, or the agent's.",
	tunnel.FailDenied:      "A policy forbids the destination, or it is the proxy itself. See --allow-destination, --deny-destination and --policy-file of the agent and the server, and the tenant's rules.",
	tunnel.FailBadAddress:  "The client asked for something that is not host:port.",
	tunnel.FailNoAgent:     "No agent that could serve it is connected. Check that agents run, their logs, and --proxy-strategies against their identifiers.",
	tunnel.FailAgentLost:   "The agent went away during the dial. Check whether it restarts, and the network between agent and server.",
	tunnel.FailExhausted:   "A process on the way is out of file descriptors or memory. Raise its limits.",
	tunnel.FailUnavailable: "The next hop cannot be reached. Run konnectivity check with this sidecar's flags.",
	tunnel.FailCancelled:   "Its client gave up waiting. No answer came: packets may be dropped before the destination, or the agent hangs.",
	tunnel.FailAuth:        "A proxy on the way wants a user and password, for Basic authentication: put them in its URL, or others than are there. A konnectivity server wants a certificate or a token.",
	tunnel.FailReset:       "The destination reset the connection at once. It may speak another protocol on that port, or be overloaded.",
	tunnel.FailGone:        "The process at its other end does not have the connection any more: it restarted, or its --resume-window is shorter.",
	tunnel.FailBound:       "Its cluster has as many connections, dials a second, or memory, as its tenant.yaml allows on one server. Raise bounds there, or look for what takes so much.",
	tunnel.FailStale:       "Another request for the same connection was quicker. Nothing needs to be done.",
}
