package link

import (
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// An id is taken under the rule of every other hop, or it would be lost at one
// of them.
func TestIDsFollowOneRule(t *testing.T) {
	for id, want := range map[string]string{"4bf92f3577b34da6": "4bf92f3577b34da6", "Req-1_a.b": "Req-1_a.b", "a/b": "", "a b": "", "<a>": "", strings.Repeat("a", tunnel.MaxID+1): ""} {
		var m openMsg
		testutil.NoError(t, m.decode(openMsg{network: "tcp", address: "a:1", id: id}.encode()))
		testutil.Equal(t, m.id, want, "what %q became", id)
	}
}

// The span is the last field of a dial that has no rules, and takes no byte without one.
func TestOpenTellsItsSpan(t *testing.T) {
	plain := openMsg{network: "tcp", address: "a:1", id: "b"}
	with := plain
	with.span = 0xb7ad6b7169203331
	want := append(plain.encode(), 0, 16, 0, 8, 0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31)
	testutil.EqualSlices(t, with.encode(), want, "the message")
	var got openMsg
	testutil.NoError(t, got.decode(want))
	testutil.Equal(t, reflect.DeepEqual(got, with), true, "it is what was sent: %+v", got)
	testutil.Fails(t, got.decode([]byte{0, 16, 0, 4, 1, 2, 3, 4}), "a span of 4 bytes")
}

// Of what a peer says, no more stays in memory than is taken of it.
func TestCutTextIsNotKept(t *testing.T) {
	const many, each = 500, 15 << 10
	long := []byte(strings.Repeat("x", each))
	opened := func(key uint16, value []byte) (m openedMsg) {
		_ = m.decode(appendField(nil, key, value))
		return m
	}
	for name, keep := range map[string]func() any{
		"OPENED, local":  func() any { return opened(4, long) },
		"OPENED, reason": func() any { return opened(3, long) },
		"OPENED, route":  func() any { return opened(7, long) },
		"OPEN, network":  func() any { var m openMsg; _ = m.decode(appendField(nil, 1, long)); return m },
		"HELLO, software": func() any {
			var h Hello
			_ = h.decode(appendField(nil, 2, long))
			return h
		},
		"HELLO of a client": func() any {
			var h Hello
			b := appendField(appendField(appendField(nil, 7, long[:each/3]), 5, long[:each/3]), 4, long[:each/3])
			_ = h.decode(b)
			h.forget()
			return h
		},
	} {
		var before, after runtime.MemStats
		kept := make([]any, many)
		for range 2 {
			runtime.GC()
		}
		runtime.ReadMemStats(&before)
		for i := range kept {
			kept[i] = keep()
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		took := (int(after.HeapAlloc) - int(before.HeapAlloc)) / many
		testutil.AtMost(t, took, 4*maxText, "bytes that are kept of each %s", name)
		runtime.KeepAlive(kept)
	}
}

// A group is taken whole, or not at all.
func TestGroupOfHello(t *testing.T) {
	for group, want := range map[string]string{
		"":                                "",
		"0123456789abcdef":                "0123456789abcdef",
		strings.Repeat("g", GroupSize-1):  "",
		strings.Repeat("g", GroupSize+1):  "",
		strings.Repeat("\x00", GroupSize): strings.Repeat("\x00", GroupSize),
	} {
		payload := testutil.Must(Hello{Role: RoleAgent, Group: group}.encode())(t)
		var got Hello
		testutil.NoError(t, got.decode(payload))
		testutil.Equal(t, got.Group, want, "what %q became", group)
	}
}

// Of groups that are lost, as many are taken as may be sent.
func TestLostGroupsOfHello(t *testing.T) {
	ids := strings.Repeat("0123456789abcdef", MaxLost)
	payload := testutil.Must(Hello{Role: RoleAgent, Lost: ids + ids}.encode())(t)
	var got Hello
	testutil.NoError(t, got.decode(append(payload, appendField(nil, 10, []byte(ids+"x"))...)))
	testutil.Equal(t, got.Lost, ids, "the groups")
	testutil.Equal(t, len(payload), len(ids)+9, "bytes that are sent")
}

// No count of servers becomes another, smaller one on the way.
func TestCountOfServersInHello(t *testing.T) {
	for _, count := range []int{1, 256, math.MaxInt32, math.MaxInt, math.MaxInt &^ 0xfffffff0} {
		payload := testutil.Must(Hello{Role: RoleServer, ServerCount: count}.encode())(t)
		var got Hello
		testutil.NoError(t, got.decode(payload))
		testutil.Equal(t, got.ServerCount, min(count, math.MaxInt32), "what %d became", count)
	}
}

// Rules that are too long fail the OPEN, and an identity or address that is counts as unknown.
// If they were cut, a part that denies could be missing.
func TestRulesAndIdentitiesAreWhole(t *testing.T) {
	var m openMsg
	testutil.Fails(t, m.decode(appendField(nil, 15, []byte(strings.Repeat("x", tunnel.RulesSize+1)))), "too many rules")
	testutil.NoError(t, m.decode(appendField(nil, 15, []byte(strings.Repeat("x", tunnel.RulesSize)))))
	testutil.Equal(t, len(m.rules), tunnel.RulesSize, "bytes of rules")
	testutil.NoError(t, m.decode(appendField(nil, 14, []byte("cn:"+strings.Repeat("x", tunnel.IdentitySize)))))
	testutil.Equal(t, m.who, "", "an identity that is too long")
	testutil.NoError(t, m.decode(appendField(nil, 2, []byte(strings.Repeat("x", maxAddress)))))
	testutil.Equal(t, len(m.address), maxAddress, "bytes of an address")
	testutil.NoError(t, m.decode(appendField(nil, 2, []byte(strings.Repeat("x", maxAddress+1)))))
	testutil.Equal(t, m.address, "", "an address that is too long")
}
