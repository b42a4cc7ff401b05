package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"konnectivity/internal/admin"
)

// lately is the age up to which failed dials count as a problem.
const lately = time.Minute

// troubles returns sentences about problems, the worst first, at most one of each kind.
func troubles(r Report) []string {
	var out []string
	say := func(text string) {
		if text != "" {
			out = append(out, text)
		}
	}
	s := r.Status
	if s.Component == serverComponent && s.Peers[admin.RoleAgent] == 0 {
		say(NoAgent(s))
	}
	say(RecentlyLost(r))
	say(unlinked(s.Unlinked))
	say(unusableTenants(s.Tenants))
	if why := s.AuditError; why != "" { // connections are made of which there may be no record
		say("records of the audit log cannot be written, and may be lost: " + why)
	}
	if why := s.PolicyError; why != "" {
		say("the policy file cannot be used, and the rules before hold: " + why)
	}
	for _, role := range []string{admin.RoleAgent, admin.RoleServer, admin.RoleClient} {
		if silent := SilentPeers(r.Peers, role); len(silent) > 0 {
			say(JoinSilent(silent))
		}
	}
	switch full := FullBuffers(s); {
	case full != "":
		say(full)
	case s.Connections.Stalled > 0:
		say(StalledReaders(s.Connections.Stalled))
	}
	say(recentFailures(s.Now, r.Failures))
	return out
}

// serverComponent is the component of a server's status.
const serverComponent = "konnectivity-server"

// NoAgent describes a server without agents: which was the last, and why it left.
func NoAgent(s admin.Status) string {
	last := s.LastGone
	if last == nil {
		return "no agent is connected to " + s.ID + ", and none was since it started"
	}
	return fmt.Sprintf("no agent is connected to %s; the last, %s at %s, left %s ago: %s", s.ID, last.ID, last.Remote, Span(s.Now.Sub(last.Time.Time)), last.Cause)
}

// unlinked names the other servers to which there is no link.
func unlinked(servers []admin.Unlinked) string {
	if len(servers) == 0 {
		return ""
	}
	first := servers[0]
	more := ""
	if n := len(servers) - 1; n > 0 {
		more = fmt.Sprintf(", and to %d more", n)
	}
	return fmt.Sprintf("agents of other servers may not be reached: there is no link to the server at %s%s: %s", first.Address, more, first.Cause)
}

// unusableTenants counts the tenants whose settings cannot be used.
func unusableTenants(states map[string]int) string {
	var words []string
	for _, state := range []string{"broken", "stale"} {
		if n := states[state]; n > 0 {
			words = append(words, fmt.Sprint(n, " ", state))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return "tenants whose settings cannot be used: " + strings.Join(words, ", ") + "; konnectivity tenants list tells why"
}

// lostFor is the time for which a lost peer is reported.
const lostFor = 10 * time.Minute

// RecentlyLost describes the last lost peer, unless it is back or no agent is left, which
// NoAgent describes.
func RecentlyLost(r Report) string {
	f, ok := lostPeer(r)
	if !ok || r.back {
		return ""
	}
	return fmt.Sprintf("%s at %s was lost %s ago: %s", f.Destination, f.Source, Span(r.Status.Now.Sub(f.Time.Time)), f.Cause)
}

// lostPeer returns the last lost peer, unless it is listed among the peers, which may be
// incomplete.
func lostPeer(r Report) (f admin.Failure, ok bool) {
	if r.Status.Peers[admin.RoleAgent] == 0 {
		return f, false
	}
	i := slices.IndexFunc(r.Failures, func(f admin.Failure) bool { // newest first
		return f.Stage == "peer" && r.Status.Now.Sub(f.Time.Time) <= lostFor
	})
	if i < 0 || slices.ContainsFunc(r.Peers, func(p admin.Peer) bool { return isSame(p, r.Failures[i]) }) {
		return f, false
	}
	return r.Failures[i], true
}

// isSame reports whether p is the lost peer.
func isSame(p admin.Peer, lost admin.Failure) bool {
	return p.Tenant == lost.Tenant && p.Role+" "+p.ID == lost.Destination
}

// SilentPeers describes the peers of a role that have been silent for too long.
func SilentPeers(peers []admin.Peer, role string) (out []string) {
	for _, p := range peers {
		if p.Role == role && p.Silent > 0 {
			out = append(out, fmt.Sprintf("%s %s at %s does not answer, for %s now", role, p.ID, p.Remote, Duration(p.Silent)))
		}
	}
	return out
}

// maxNamed bounds the peers in a sentence.
const maxNamed = 3

// JoinSilent joins the results of SilentPeers.
func JoinSilent(silent []string) string {
	if more := len(silent) - maxNamed; more > 0 {
		return strings.Join(silent[:maxNamed], "; ") + fmt.Sprintf("; nor do %d more", more)
	}
	return strings.Join(silent, "; ")
}

// FullBuffers describes memory that is nearly full of bytes for slow readers; "" if none
// is.
func FullBuffers(s admin.Status) string {
	for _, name := range slices.Sorted(maps.Keys(s.Buffers)) {
		if b := s.Buffers[name]; b.Limit > 0 && b.Used >= b.Limit*fullFrom/4 {
			return fmt.Sprintf("the memory for bytes in flight by %s is full, %s of %s: %s", name, Bytes(float64(b.Used)), Bytes(float64(b.Limit)), StalledReaders(s.Connections.Stalled))
		}
	}
	return ""
}

// fullFrom is the number of quarters from which memory counts as full: links then grant
// only their smallest window (docs/link-protocol.md).
const fullFrom = 3

// StalledReaders describes n stalled connections.
func StalledReaders(n int) string {
	return Plural(n, "connection waits", "connections wait") + " for a side that does not read"
}

// recentFailures sums up the failed dials of the last minute by kind, with the newest of
// the most frequent kind.
func recentFailures(now time.Time, failures []admin.Failure) string {
	counts, newest := map[string]int{}, map[string]admin.Failure{}
	for _, f := range failures { // newest first
		if f.Stage != "dial" || now.Sub(f.Time.Time) > lately {
			continue
		}
		if counts[f.Failure]++; counts[f.Failure] == 1 {
			newest[f.Failure] = f
		}
	}
	if len(counts) == 0 {
		return ""
	}
	kinds := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var words []string
	for _, kind := range kinds {
		words = append(words, fmt.Sprint(counts[kind], " ", strings.ReplaceAll(kind, "_", " ")))
	}
	f := newest[kinds[0]]
	by := ""
	if f.Next != "" {
		by = " by " + f.Next
	}
	atLeast := ""
	if len(failures) >= admin.KeptFailures && now.Sub(failures[len(failures)-1].Time.Time) <= lately {
		atLeast = "at least " // the process does not keep older ones
	}
	return fmt.Sprintf("failed dials in the last minute: %s%s; %s%s: %s", atLeast, strings.Join(words, ", "), f.Destination, by, f.Cause)
}
