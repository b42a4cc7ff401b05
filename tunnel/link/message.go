package link

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"konnectivity/tunnel"
)

// Role is what a process is in the suite.
type Role uint8

// The roles of §2's HELLO.
const (
	RoleAgent  Role = 1
	RoleClient Role = 2
	RoleServer Role = 3
)

var roleWords = [...]string{RoleAgent: tunnel.RoleAgent, RoleClient: tunnel.RoleClient, RoleServer: tunnel.RoleServer}

func (r Role) String() string {
	if r >= RoleAgent && r <= RoleServer {
		return roleWords[r]
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Hello is how one side introduces itself. Nothing in it is proven; Verify of
// the Config judges it.
type Hello struct {
	Role        Role
	Software    string // name and version
	ID          string // agent id or server id
	Identifiers string // of an agent: the URL query of --agent-identifiers
	Token       string // bearer token; a secret
	ServerCount int    // of a server: how many there are
	Serving     Serving
	Features    []string

	// Group is what the links of one process to one server have in common if
	// they are lanes of one (§10): GroupSize bytes, or none.
	Group string

	// Lost are the groups of which this side had links and has none any more, at most
	// MaxLost, one behind the other: the peer may not know that yet (§6).
	Lost string
}

// MaxID bounds a peer's id (§14). Node names (253) and UUIDs fit with room; an id is repeated in
// every log line about its peer.
const MaxID = 512

// CheckID refuses an id that is too long, as every handshake does after Verify.
func (h Hello) CheckID() error {
	if len(h.ID) > MaxID {
		return fmt.Errorf("the %s's id has %d bytes: at most %d are accepted", h.Role, len(h.ID), MaxID)
	}
	return nil
}

// GroupSize is how long a Hello's Group is, in bytes.
const GroupSize = 16

// MaxLost is how many groups count that a Hello says are lost.
const MaxLost = 64

// Serving is what a server says of the agents behind it.
type Serving struct {
	Told bool   // servers of before say nothing
	Why  string // why no agent serves; "": one does
}

// String leaves the token out, so that no log line can carry it.
func (h Hello) String() string {
	return fmt.Sprintf("%s %q (%q)", h.Role, cut(h.ID), cut(h.Software))
}

// GoString leaves the token out of %#v too.
func (h Hello) GoString() string { return h.String() }

const (
	maxAddress  = 512 // of OPEN; host names end at 253
	maxFeatures = 64  // of HELLO; the suite has seven
)

// fields are those of HELLO and INFO.
func (h *Hello) fields(c *coder) {
	h.Role = Role(c.number(1, 1, uint64(h.Role), true))
	h.Software = c.text(2, h.Software, maxText)
	h.ID = c.text(3, h.ID, maxPayload)
	h.Identifiers = c.text(4, h.Identifiers, maxPayload)
	h.Token = c.text(5, h.Token, maxPayload)
	h.Group, _ = c.string(9, "16 bytes", h.Group, GroupSize+1, h.Group != "")
	h.Lost, _ = c.string(10, "16 bytes", h.Lost, MaxLost*GroupSize, h.Lost != "")
	servers := c.number(6, 4, uint64(min(h.ServerCount, math.MaxInt32)), h.ServerCount > 0)
	h.ServerCount = int(min(servers, math.MaxInt32))
	h.Serving.Why, h.Serving.Told = c.string(8, "text", h.Serving.Why, maxText, h.Serving.Told)
	h.Features = c.list(7, h.Features, maxFeatures)
}

// encode returns HELLO's payload; an error means it would not fit a frame.
func (h Hello) encode() ([]byte, error) {
	for _, t := range []struct{ name, text string }{
		{"software", h.Software}, {"id", h.ID}, {"identifiers", h.Identifiers}, {"token", h.Token}, {"group", h.Group},
	} {
		if len(t.text) > maxPayload {
			return nil, fmt.Errorf("the %s to present to the peer has %d bytes, a HELLO carries at most %d", t.name, len(t.text), maxPayload)
		}
	}
	c := encoder()
	h.fields(&c)
	if len(c.out) > maxPayload {
		return nil, fmt.Errorf("id, identifiers and token together have %d bytes, a HELLO carries at most %d", len(c.out), maxPayload)
	}
	return c.out, nil
}

// decode fills h from the payload of HELLO or INFO; fields that are not in b stay.
func (h *Hello) decode(b []byte) error {
	c := decoder(b)
	h.fields(&c)
	if len(h.Group) != GroupSize {
		h.Group = ""
	}
	return c.err
}

// forget drops the fields without a use once the link is up: the token, a secret; the
// features; and the identifiers of any but an agent.
func (h *Hello) forget() {
	h.Token, h.Features = "", nil
	if h.Role != RoleAgent {
		h.Identifiers = ""
	}
}

// openMsg is the payload of OPEN.
type openMsg struct {
	network, address, id string
	credit               uint64
	client               uint64 // 0: not told
	forwarded            bool   // by a server, for cluster (§11)
	cluster              string // "": that of the server's flags
	who                  tunnel.Identity
	rules                string
	span                 uint64         // 0: none is sent
	resume               *tunnel.Resume // nil: plain
}

const defaultNetwork = "tcp"

// fields are those of OPEN. Of a text that must not be cut, a byte more is taken than it
// may have; decode judges it.
func (m *openMsg) fields(c *coder) {
	network := m.network
	if network == defaultNetwork {
		network = ""
	}
	m.network = cmp.Or(c.text(1, network, maxText), defaultNetwork)
	m.address = c.text(2, m.address, maxAddress+1)
	m.credit = c.number(3, 8, m.credit, true)
	m.id = c.text(4, m.id, tunnel.MaxID+1)
	m.client = c.number(5, 8, m.client, m.client != 0)
	m.cluster, m.forwarded = c.string(13, "text", m.cluster, maxText, m.forwarded)
	m.who = tunnel.Identity(c.text(14, string(m.who), tunnel.IdentitySize+1))
	m.rules = c.text(15, m.rules, tunnel.RulesSize+1)
	m.span = c.number(16, 8, m.span, m.span != 0)
	if c.encodes && m.resume != nil {
		resumeFields(c, *m.resume) // the caller's is left as it is
	} else if slices.Max(c.came[6:13]) > 0 {
		resume := resumeFields(c, tunnel.Resume{})
		m.resume = &resume
	}
}

// resumeFields are those of a connection that may outlive the stream.
func resumeFields(c *coder, r tunnel.Resume) tunnel.Resume {
	again, bulk := r.Again(), uint64(0)
	if r.Bulk {
		bulk = 1
	}
	c.array(6, "16 bytes", r.Token[:])
	r.Window = milliseconds(c.number(7, 4, uint64(r.Window.Milliseconds()), true))
	r.Attempt = uint32(c.number(11, 4, uint64(r.Attempt), r.Attempt > 0 && !again))
	r.Epoch = uint32(c.number(8, 4, uint64(r.Epoch), again))
	r.Route, _ = c.string(9, "bytes", r.Route, maxText+1, again)
	r.Bulk = c.number(12, 1, bulk, again && r.Bulk) == 1
	r.Taken = c.number(10, 8, r.Taken, again)
	return r
}

func milliseconds(v uint64) time.Duration { return time.Duration(v) * time.Millisecond }

func (m openMsg) encode() []byte {
	c := encoder()
	m.fields(&c)
	return c.out
}

func (m *openMsg) decode(b []byte) error {
	*m = openMsg{network: defaultNetwork}
	c := decoder(b)
	m.fields(&c)
	if len(m.address) > maxAddress {
		m.address = "" // a bad one
	}
	m.id, m.who = tunnel.CleanID(m.id), tunnel.CheckIdentity(string(m.who))
	switch {
	case len(m.rules) > tunnel.RulesSize: // a part of them would let pass what the rest denies
		return errFields
	case m.resume != nil && len(m.resume.Route) > maxText:
		return errFields
	}
	return c.err
}

// openedMsg is the payload of OPENED.
type openedMsg struct {
	failure               tunnel.Failure // 0: success
	credit                uint64
	reason, local, remote string
	grant                 tunnel.Grant // without a window: plain
}

// fields are those of OPENED: the failure and its reason, or all others.
func (m *openedMsg) fields(c *coder) {
	grants := m.grant.Window > 0
	m.failure = tunnel.Failure(c.number(1, 2, uint64(m.failure), m.failure != 0))
	m.reason = c.text(3, m.reason, maxText)
	m.credit = c.number(2, 8, m.credit, m.failure == 0)
	m.local = c.text(4, m.local, maxText)
	m.remote = c.text(5, m.remote, maxText)
	m.grant.Window = milliseconds(c.number(6, 4, uint64(m.grant.Window.Milliseconds()), grants))
	m.grant.Route, _ = c.string(7, "bytes", m.grant.Route, maxText, m.grant.Route != "")
	m.grant.Taken = c.number(8, 8, m.grant.Taken, grants)
}

func (m openedMsg) encode() []byte {
	if m.failure != 0 {
		m = openedMsg{failure: m.failure, reason: m.reason}
	} else if m.reason = ""; m.grant.Window <= 0 {
		m.grant = tunnel.Grant{}
	}
	c := encoder()
	m.fields(&c)
	return c.out
}

func (m *openedMsg) decode(b []byte) error {
	c := decoder(b)
	m.fields(&c)
	if m.failure != 0 && !m.failure.Known() {
		m.failure = tunnel.FailInternal // §8
	}
	return c.err
}
