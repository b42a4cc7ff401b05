package link

import (
	"encoding/binary"
	"errors"
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

// Field keys of §2.
const (
	helloRole        = 1
	helloSoftware    = 2
	helloID          = 3
	helloIdentifiers = 4
	helloToken       = 5
	helloServerCount = 6
	helloFeature     = 7
	helloServing     = 8
	helloGroup       = 9

	openNetwork = 1
	openAddress = 2
	openCredit  = 3
	openID      = 4
	openClient  = 5
	openToken   = 6
	openWindow  = 7
	openEpoch   = 8
	openRoute   = 9
	openTaken   = 10
	openAttempt = 11
	openBulk    = 12

	openedFailure = 1
	openedCredit  = 2
	openedReason  = 3
	openedLocal   = 4
	openedRemote  = 5
	openedWindow  = 6
	openedRoute   = 7
	openedTaken   = 8
)

const (
	maxAddress  = 512 // of OPEN; host names end at 253
	maxFeatures = 64  // a HELLO that names more is from nobody we know
)

var errFields = errors.New("fields do not parse")

// field is one key with its value.
type field struct {
	key   uint16
	value []byte
}

func appendField(b []byte, key uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, key)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// appendText leaves empty values out; absent and empty mean the same.
func appendText(b []byte, key uint16, value string) []byte {
	if value == "" {
		return b
	}
	return appendField(b, key, []byte(value))
}

// nextField takes one field off b.
func nextField(b []byte) (f field, rest []byte, err error) {
	if len(b) < 4 {
		return f, nil, errFields
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if len(b) < 4+n {
		return f, nil, errFields
	}
	return field{binary.BigEndian.Uint16(b), b[4 : 4+n]}, b[4+n:], nil
}

// uint reads a value that must have exactly n bytes.
func (f field) uint(n int) (uint64, error) {
	if len(f.value) != n {
		return 0, errFields
	}
	var v uint64
	for _, c := range f.value {
		v = v<<8 | uint64(c)
	}
	return v, nil
}

// encode returns HELLO's payload; an error means it would not fit a frame.
func (h Hello) encode() ([]byte, error) {
	b := appendField(nil, helloRole, []byte{byte(h.Role)})
	for _, t := range []struct {
		key  uint16
		name string
		text string
	}{
		{helloSoftware, "software", h.Software}, {helloID, "id", h.ID},
		{helloIdentifiers, "identifiers", h.Identifiers}, {helloToken, "token", h.Token},
		{helloGroup, "group", h.Group},
	} {
		if len(t.text) > maxPayload {
			return nil, fmt.Errorf("the %s to present to the peer has %d bytes, a HELLO carries at most %d", t.name, len(t.text), maxPayload)
		}
		b = appendText(b, t.key, t.text)
	}
	if h.ServerCount > 0 {
		b = appendField(b, helloServerCount, binary.BigEndian.AppendUint32(nil, uint32(min(h.ServerCount, math.MaxInt32))))
	}
	if h.Serving.Told {
		b = appendField(b, helloServing, []byte(cut(h.Serving.Why)))
	}
	for _, f := range h.Features {
		b = appendText(b, helloFeature, f)
	}
	if len(b) > maxPayload {
		return nil, fmt.Errorf("id, identifiers and token together have %d bytes, a HELLO carries at most %d", len(b), maxPayload)
	}
	return b, nil
}

// decode fills h from HELLO's or INFO's payload; fields not named stay.
func (h *Hello) decode(b []byte) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch f.key {
		case helloRole:
			v, err := f.uint(1)
			if err != nil {
				return err
			}
			h.Role = Role(v)
		case helloSoftware:
			h.Software = clip(f.value)
		case helloID:
			h.ID = string(f.value)
		case helloIdentifiers:
			h.Identifiers = string(f.value)
		case helloToken:
			h.Token = string(f.value)
		case helloServerCount:
			v, err := f.uint(4)
			if err != nil {
				return err
			}
			h.ServerCount = int(min(v, math.MaxInt32))
		case helloServing:
			h.Serving = Serving{Told: true, Why: clip(f.value)}
		case helloGroup:
			if h.Group = ""; len(f.value) == GroupSize {
				h.Group = string(f.value)
			}
		case helloFeature:
			if len(h.Features) >= maxFeatures {
				return errFields
			}
			h.Features = append(h.Features, string(f.value))
		}
	}
	return nil
}

// forget drops what has served its purpose once the link is up: a token is a secret,
// and what only agents are asked for is to take no memory of others.
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
	client               uint64         // 0: not told
	resume               *tunnel.Resume // nil: plain
}

func (m openMsg) encode() []byte {
	b := make([]byte, 0, 64+len(m.address))
	if m.network != "tcp" {
		b = appendText(b, openNetwork, m.network)
	}
	b = appendText(b, openAddress, m.address)
	b = appendField(b, openCredit, binary.BigEndian.AppendUint64(nil, m.credit))
	b = appendText(b, openID, m.id)
	if m.client != 0 {
		b = appendField(b, openClient, binary.BigEndian.AppendUint64(nil, m.client))
	}
	return appendResume(b, m.resume)
}

func decodeOpen(b []byte) (m openMsg, err error) {
	m.network = "tcp"
	for len(b) > 0 {
		var f field
		if f, b, err = nextField(b); err != nil {
			return m, err
		}
		switch f.key {
		case openNetwork:
			if m.network = clip(f.value); m.network == "" {
				m.network = "tcp"
			}
		case openAddress:
			m.address = ""
			if len(f.value) <= maxAddress { // else it stays empty: a bad address
				m.address = string(f.value)
			}
		case openCredit:
			m.credit, err = f.uint(8)
		case openID:
			m.id = tunnel.CleanID(string(f.value))
		case openClient:
			m.client, err = f.uint(8)
		case openToken, openWindow, openEpoch, openRoute, openTaken, openAttempt, openBulk:
			if m.resume == nil {
				m.resume = new(tunnel.Resume)
			}
			err = readResume(m.resume, f)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// openedMsg is the payload of OPENED.
type openedMsg struct {
	failure               tunnel.Failure // 0: success
	credit                uint64
	reason, local, remote string
	grant                 tunnel.Grant
}

func (m openedMsg) encode() []byte {
	var b []byte
	if m.failure != 0 {
		b = appendField(b, openedFailure, binary.BigEndian.AppendUint16(nil, uint16(m.failure)))
		return appendText(b, openedReason, cut(m.reason))
	}
	b = appendField(b, openedCredit, binary.BigEndian.AppendUint64(nil, m.credit))
	b = appendText(b, openedLocal, cut(m.local))
	b = appendText(b, openedRemote, cut(m.remote))
	return appendGrant(b, m.grant)
}

func decodeOpened(b []byte) (m openedMsg, err error) {
	for len(b) > 0 {
		var f field
		if f, b, err = nextField(b); err != nil {
			return m, err
		}
		var v uint64
		switch f.key {
		case openedFailure:
			v, err = f.uint(2)
			if m.failure = tunnel.Failure(v); v != 0 && !m.failure.Known() {
				m.failure = tunnel.FailInternal // §8
			}
		case openedCredit:
			m.credit, err = f.uint(8)
		case openedReason:
			m.reason = clip(f.value)
		case openedLocal:
			m.local = clip(f.value)
		case openedRemote:
			m.remote = clip(f.value)
		case openedWindow, openedRoute, openedTaken:
			err = readGrant(&m.grant, f)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

func appendResume(b []byte, r *tunnel.Resume) []byte {
	if r == nil {
		return b
	}
	b = appendField(b, openToken, r.Token[:])
	b = appendField(b, openWindow, binary.BigEndian.AppendUint32(nil, uint32(r.Window.Milliseconds())))
	if r.Attempt > 0 && !r.Again() {
		b = appendField(b, openAttempt, binary.BigEndian.AppendUint32(nil, r.Attempt))
	}
	if !r.Again() {
		return b
	}
	b = appendField(b, openEpoch, binary.BigEndian.AppendUint32(nil, r.Epoch))
	b = appendField(b, openRoute, []byte(r.Route))
	if r.Bulk {
		b = appendField(b, openBulk, []byte{1})
	}
	return appendField(b, openTaken, binary.BigEndian.AppendUint64(nil, r.Taken))
}

func readResume(r *tunnel.Resume, f field) error {
	var v uint64
	var err error
	switch f.key {
	case openToken:
		if len(f.value) != len(r.Token) {
			return errFields
		}
		r.Token = [16]byte(f.value)
	case openWindow:
		v, err = f.uint(4)
		r.Window = time.Duration(v) * time.Millisecond
	case openEpoch:
		v, err = f.uint(4)
		r.Epoch = uint32(v)
	case openRoute:
		if len(f.value) > maxText {
			return errFields
		}
		r.Route = string(f.value)
	case openTaken:
		r.Taken, err = f.uint(8)
	case openAttempt:
		v, err = f.uint(4)
		r.Attempt = uint32(v)
	case openBulk:
		v, err = f.uint(1)
		r.Bulk = v == 1
	}
	return err
}

func appendGrant(b []byte, g tunnel.Grant) []byte {
	if g.Window <= 0 {
		return b
	}
	b = appendField(b, openedWindow, binary.BigEndian.AppendUint32(nil, uint32(g.Window.Milliseconds())))
	b = appendText(b, openedRoute, cut(g.Route))
	return appendField(b, openedTaken, binary.BigEndian.AppendUint64(nil, g.Taken))
}

func readGrant(g *tunnel.Grant, f field) error {
	var v uint64
	var err error
	switch f.key {
	case openedWindow:
		v, err = f.uint(4)
		g.Window = time.Duration(v) * time.Millisecond
	case openedRoute:
		g.Route = clip(f.value)
	case openedTaken:
		g.Taken, err = f.uint(8)
	}
	return err
}
