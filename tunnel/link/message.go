package link

import (
	"cmp"
	"fmt"
	"math"
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

func (r Role) String() string {
	switch r {
	case RoleAgent:
		return "agent"
	case RoleClient:
		return "client"
	case RoleServer:
		return "server"
	default:
		return fmt.Sprintf("role %d", uint8(r))
	}
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
}

// GroupSize is how long a Hello's Group is, in bytes.
const GroupSize = 16

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
	maxFeatures = 64  // of HELLO; the suite has six
)

// helloFields are those of HELLO and INFO.
var helloFields = []field[Hello]{
	number(1, 1, func(h Hello) (uint64, bool) { return uint64(h.Role), true },
		func(h *Hello, v uint64) { h.Role = Role(v) }),
	{2, "text", func(b []byte, h Hello) []byte { return appendText(b, 2, h.Software) }, setSoftware},
	text(3, maxPayload, func(h Hello) string { return h.ID }, func(h *Hello) *string { return &h.ID }),
	text(4, maxPayload, func(h Hello) string { return h.Identifiers }, func(h *Hello) *string { return &h.Identifiers }),
	text(5, maxPayload, func(h Hello) string { return h.Token }, func(h *Hello) *string { return &h.Token }),
	{9, "16 bytes", func(b []byte, h Hello) []byte { return appendText(b, 9, h.Group) }, setGroup},
	number(6, 4, func(h Hello) (uint64, bool) { return uint64(min(h.ServerCount, math.MaxInt32)), h.ServerCount > 0 },
		func(h *Hello, v uint64) { h.ServerCount = int(min(v, math.MaxInt32)) }),
	{8, "text", putServing, setServing},
	{7, "text", putFeatures, addFeature},
}

func setSoftware(h *Hello, value []byte) error {
	h.Software = clip(value)
	return nil
}

func setGroup(h *Hello, value []byte) error {
	if h.Group = ""; len(value) == GroupSize {
		h.Group = string(value)
	}
	return nil
}

func putServing(b []byte, h Hello) []byte {
	if !h.Serving.Told {
		return b
	}
	return appendField(b, 8, cut(h.Serving.Why))
}

func setServing(h *Hello, value []byte) error {
	h.Serving = Serving{Told: true, Why: clip(value)}
	return nil
}

func putFeatures(b []byte, h Hello) []byte {
	for _, name := range h.Features {
		b = appendText(b, 7, name)
	}
	return b
}

func addFeature(h *Hello, value []byte) error {
	if len(h.Features) >= maxFeatures {
		return errFields
	}
	h.Features = append(h.Features, string(value))
	return nil
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
	b := encodeFields(nil, h, helloFields)
	if len(b) > maxPayload {
		return nil, fmt.Errorf("id, identifiers and token together have %d bytes, a HELLO carries at most %d", len(b), maxPayload)
	}
	return b, nil
}

// decode fills h from the payload of HELLO or INFO; fields that are not in b stay.
func (h *Hello) decode(b []byte) error { return decodeFields(b, h, helloFields) }

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

// openFields are those of OPEN. From 6 to 12, they are of a connection that may outlive
// the stream.
var openFields = []field[openMsg]{
	{1, "text", putNetwork, setNetwork},
	{2, "text", func(b []byte, m openMsg) []byte { return appendText(b, 2, m.address) }, setAddress},
	number(3, 8, func(m openMsg) (uint64, bool) { return m.credit, true }, func(m *openMsg, v uint64) { m.credit = v }),
	{4, "text", func(b []byte, m openMsg) []byte { return appendText(b, 4, m.id) }, setID},
	number(5, 8, func(m openMsg) (uint64, bool) { return m.client, m.client != 0 }, func(m *openMsg, v uint64) { m.client = v }),
	{13, "text", putCluster, setCluster},
	{14, "text", putWho, setWho},
	{15, "text", putRules, setRules},
	number(16, 8, func(m openMsg) (uint64, bool) { return m.span, m.span != 0 }, func(m *openMsg, v uint64) { m.span = v }),
	ofResume(field[tunnel.Resume]{6, "16 bytes", putToken, setToken}),
	ofResume(number(7, 4, func(r tunnel.Resume) (uint64, bool) { return uint64(r.Window.Milliseconds()), true },
		func(r *tunnel.Resume, v uint64) { r.Window = milliseconds(v) })),
	ofResume(number(11, 4, func(r tunnel.Resume) (uint64, bool) { return uint64(r.Attempt), r.Attempt > 0 && !r.Again() },
		func(r *tunnel.Resume, v uint64) { r.Attempt = uint32(v) })),
	ofResume(number(8, 4, func(r tunnel.Resume) (uint64, bool) { return uint64(r.Epoch), r.Again() },
		func(r *tunnel.Resume, v uint64) { r.Epoch = uint32(v) })),
	ofResume(field[tunnel.Resume]{9, "bytes", putRoute, setRoute}),
	ofResume(number(12, 1, func(r tunnel.Resume) (uint64, bool) { return 1, r.Again() && r.Bulk },
		func(r *tunnel.Resume, v uint64) { r.Bulk = v == 1 })),
	ofResume(number(10, 8, func(r tunnel.Resume) (uint64, bool) { return r.Taken, r.Again() },
		func(r *tunnel.Resume, v uint64) { r.Taken = v })),
}

// ofResume is a field of an OPEN's resume, which it makes where there is none.
func ofResume(f field[tunnel.Resume]) field[openMsg] {
	return field[openMsg]{
		key: f.key, kind: f.kind,
		put: func(b []byte, m openMsg) []byte {
			if m.resume == nil {
				return b
			}
			return f.put(b, *m.resume)
		},
		set: func(m *openMsg, value []byte) error {
			if m.resume == nil {
				m.resume = new(tunnel.Resume)
			}
			return f.set(m.resume, value)
		},
	}
}

const defaultNetwork = "tcp"

func putNetwork(b []byte, m openMsg) []byte {
	if m.network == defaultNetwork {
		return b
	}
	return appendText(b, 1, m.network)
}

func setNetwork(m *openMsg, value []byte) error {
	m.network = cmp.Or(clip(value), defaultNetwork)
	return nil
}

func setAddress(m *openMsg, value []byte) error {
	if m.address = ""; len(value) <= maxAddress { // else it stays empty: a bad address
		m.address = string(value)
	}
	return nil
}

func setID(m *openMsg, value []byte) error {
	m.id = tunnel.CleanID(string(value))
	return nil
}

func putCluster(b []byte, m openMsg) []byte {
	if !m.forwarded {
		return b
	}
	return appendField(b, 13, m.cluster)
}

func setCluster(m *openMsg, value []byte) error {
	m.forwarded, m.cluster = true, clip(value)
	return nil
}

func putWho(b []byte, m openMsg) []byte { return appendText(b, 14, string(m.who)) }

func setWho(m *openMsg, value []byte) error {
	m.who = "" // of more bytes, too: a part must not pass for all
	if len(value) <= tunnel.IdentitySize {
		m.who = tunnel.CheckIdentity(string(value))
	}
	return nil
}

func putRules(b []byte, m openMsg) []byte { return appendText(b, 15, m.rules) }

func setRules(m *openMsg, value []byte) error {
	if len(value) > tunnel.RulesSize {
		return errFields // a part of them would let pass what the rest denies
	}
	m.rules = string(value)
	return nil
}

func putToken(b []byte, r tunnel.Resume) []byte { return appendField(b, 6, r.Token[:]) }

func setToken(r *tunnel.Resume, value []byte) error {
	if len(value) != len(r.Token) {
		return errFields
	}
	r.Token = [16]byte(value)
	return nil
}

func putRoute(b []byte, r tunnel.Resume) []byte {
	if !r.Again() {
		return b
	}
	return appendField(b, 9, r.Route)
}

func setRoute(r *tunnel.Resume, value []byte) error {
	if len(value) > maxText {
		return errFields
	}
	r.Route = string(value)
	return nil
}

func milliseconds(v uint64) time.Duration { return time.Duration(v) * time.Millisecond }

func (m openMsg) encode() []byte {
	return encodeFields(make([]byte, 0, 64+len(m.address)), m, openFields)
}

func (m *openMsg) decode(b []byte) error {
	*m = openMsg{network: defaultNetwork}
	return decodeFields(b, m, openFields)
}

// openedMsg is the payload of OPENED.
type openedMsg struct {
	failure               tunnel.Failure // 0: success
	credit                uint64
	reason, local, remote string
	grant                 tunnel.Grant // without a window: plain
}

// openedFields are those of OPENED: the failure and its reason, or all others.
var openedFields = []field[openedMsg]{
	number(1, 2, func(m openedMsg) (uint64, bool) { return uint64(m.failure), m.failure != 0 }, setFailure),
	text(3, maxText, func(m openedMsg) string { return m.reason }, func(m *openedMsg) *string { return &m.reason }),
	number(2, 8, func(m openedMsg) (uint64, bool) { return m.credit, m.failure == 0 },
		func(m *openedMsg, v uint64) { m.credit = v }),
	text(4, maxText, func(m openedMsg) string { return m.local }, func(m *openedMsg) *string { return &m.local }),
	text(5, maxText, func(m openedMsg) string { return m.remote }, func(m *openedMsg) *string { return &m.remote }),
	number(6, 4, func(m openedMsg) (uint64, bool) { return uint64(m.grant.Window.Milliseconds()), m.grant.Window > 0 },
		func(m *openedMsg, v uint64) { m.grant.Window = milliseconds(v) }),
	text(7, maxText, func(m openedMsg) string { return m.grant.Route }, func(m *openedMsg) *string { return &m.grant.Route }).is("bytes"),
	number(8, 8, func(m openedMsg) (uint64, bool) { return m.grant.Taken, m.grant.Window > 0 },
		func(m *openedMsg, v uint64) { m.grant.Taken = v }),
}

func setFailure(m *openedMsg, v uint64) {
	if m.failure = tunnel.Failure(v); v != 0 && !m.failure.Known() {
		m.failure = tunnel.FailInternal // §8
	}
}

func (m openedMsg) encode() []byte {
	if m.failure != 0 {
		m = openedMsg{failure: m.failure, reason: m.reason}
	} else if m.reason = ""; m.grant.Window <= 0 {
		m.grant = tunnel.Grant{}
	}
	return encodeFields(nil, m, openedFields)
}

func (m *openedMsg) decode(b []byte) error { return decodeFields(b, m, openedFields) }
