package link

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// FuzzMessages: whatever decodes survives being encoded and decoded again, and
// an encoder never makes what does not fit a frame.
func FuzzMessages(f *testing.F) {
	hello := testutil.Must(Hello{Role: RoleAgent, Software: "s/1", ID: "id", Identifiers: "ipv4=1.2.3.4&host=x", Token: "t", ServerCount: 3, Features: []string{"a", "b"}}.encode())(f)
	f.Add(hello)
	f.Add(openMsg{network: "tcp4", address: "example.test:80", id: "0123456789abcdef", credit: initialWindow}.encode())
	f.Add(openMsg{network: "tcp", address: "x:1", span: 1 << 63}.encode())
	token := [16]byte{1, 2, 3}
	f.Add(openMsg{network: "tcp", address: "x:1", resume: &tunnel.Resume{Token: token, Window: 30 * time.Second}}.encode())
	f.Add(openMsg{network: "tcp", address: "x:1", resume: &tunnel.Resume{
		Token: token, Window: 30 * time.Second, Epoch: 7, Route: "12345678agent", Taken: 1 << 40, Bulk: true}}.encode())
	attempt := openMsg{network: "tcp", address: "x:1", resume: &tunnel.Resume{Token: token, Window: 30 * time.Second, Attempt: 2}}.encode()
	f.Add(attempt)
	f.Add(appendField(attempt, 8, []byte{0, 0, 0, 7})) // an epoch too, which no encoder makes
	f.Add(openedMsg{credit: 9, grant: tunnel.Grant{Window: 30 * time.Second, Route: "12345678agent", Taken: 1 << 40}}.encode())
	f.Add(openedMsg{credit: initialWindow, local: "10.0.0.1:1", remote: "[::1]:2"}.encode())
	f.Add(openedMsg{failure: tunnel.FailRefused, reason: "connection refused"}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > maxPayload {
			return
		}
		checkHello(t, b)
		checkOpen(t, b)
		checkOpened(t, b)
	})
}

func checkHello(t *testing.T, b []byte) {
	var first, second Hello
	if first.decode(b) != nil {
		return
	}
	again, err := first.encode()
	if err != nil {
		testutil.Requires(t, len(b) >= maxPayload-5, "%v", err) // a role that was not there
		return
	}
	testutil.NoError(t, second.decode(again))
	first.Features = slices.DeleteFunc(first.Features, func(s string) bool { return s == "" })
	if len(first.Features) == 0 {
		first.Features = nil
	}
	testutil.Requires(t, reflect.DeepEqual(first, second) && len(second.Features) <= maxFeatures && len(second.Software) <= maxText,
		"HELLO %v became %v", first, second)
	if s := first.String(); len(first.Token) > 20 && bytes.Contains([]byte(s), []byte(first.Token)) {
		t.Fatalf("the token is in %q", s)
	}
}

func checkOpen(t *testing.T, b []byte) {
	var first, second openMsg
	if first.decode(b) != nil {
		return
	}
	err := second.decode(first.encode())
	testutil.Requires(t, err == nil && reflect.DeepEqual(canonical(first.resume), canonical(second.resume)),
		"OPEN with %#v became %#v, %v", first.resume, second.resume, err)
	first.resume, second.resume = nil, nil
	testutil.Equal(t, first, second, "OPEN, encoded and decoded again")
	if len(first.address) > maxAddress || len(first.id) > tunnel.MaxID || first.network == "" || len(first.network) > maxText {
		t.Fatalf("OPEN beyond its bounds: %+v", first)
	}
}

func checkOpened(t *testing.T, b []byte) {
	var first, second openedMsg
	if first.decode(b) != nil {
		return
	}
	if first.failure != 0 {
		first = openedMsg{failure: first.failure, reason: first.reason}
	}
	if first.grant.Window <= 0 { // then it grants nothing
		first.grant = tunnel.Grant{}
	}
	testutil.Requires(t, len(first.grant.Route) <= maxText, "a route of %d bytes", len(first.grant.Route))
	err := second.decode(first.encode())
	first.reason, second.reason = onlyFailed(first), onlyFailed(second)
	testutil.Requires(t, err == nil && first == second, "OPENED %+v became %+v, %v", first, second, err)
	testutil.Requires(t, (first.failure == 0 || first.failure.Known()) && len(first.reason) <= maxText && len(first.local) <= maxText,
		"OPENED beyond its bounds: %+v", first)
}

// canonical is r without what means nothing: where nothing is resumed, most of it, and
// else the attempt.
func canonical(r *tunnel.Resume) tunnel.Resume {
	if r == nil {
		return tunnel.Resume{}
	}
	if !r.Again() {
		return tunnel.Resume{Token: r.Token, Window: r.Window, Attempt: r.Attempt}
	}
	if len(r.Route) > maxText {
		panic("a route beyond its bound")
	}
	again := *r
	again.Attempt = 0
	return again
}

// onlyFailed is the reason, which a success has none of.
func onlyFailed(m openedMsg) string {
	if m.failure == 0 {
		return ""
	}
	return m.reason
}

// FuzzHeader: a header that parses is encoded to the same bytes.
func FuzzHeader(f *testing.F) {
	f.Add(appendFrame(nil, frameData, flagDataFin, 7, []byte("x"))[:headerSize])
	f.Add(appendPing(nil, flagPingAck, 1)[:headerSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			return
		}
		h, err := parseHeader(b)
		testutil.Equal(t, err != nil, h.length > maxPayload, "a length of %d is an error: %v", h.length, err)
		var again [headerSize]byte
		h.put(again[:])
		testutil.Requires(t, bytes.Equal(again[:], b[:headerSize]), "%x became %x", b[:headerSize], again)
	})
}
