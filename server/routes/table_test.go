package routes

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

const waitTime = tunnel.Moment(tunnel.BackTime)

// say has a server tell one thing at a time.
func say(t *testing.T, table *Table, server int, op Op, cluster string, k Key, now tunnel.Moment) {
	t.Helper()
	testutil.NoError(t, table.Learn(server, Record{op, cluster, k}, now))
}

// A key is found in its own cluster until no server has it. Then it is waited for.
func TestFind(t *testing.T) {
	host := OfText(Host, "a.example")
	var table Table
	want := func(now tunnel.Moment, at Servers, waited bool) {
		t.Helper()
		if gotAt, gotWaited := table.Find("red", host, now); gotAt != at || gotWaited != waited {
			t.Errorf("at %d: servers %b, waited for: %v; want %b, %v", now, gotAt, gotWaited, at, waited)
		}
	}
	want(0, 0, false)
	say(t, &table, 1, There, "red", host, 0)
	say(t, &table, 1, There, "red", host, 0)
	say(t, &table, 63, There, "red", host, 0)
	want(0, 1<<1|1<<63, false)
	at, _ := table.Find("blue", host, 0)
	testutil.Holds(t, at == 0, "another cluster has it")
	say(t, &table, 2, Gone, "red", host, 0) // which never had it
	say(t, &table, 1, Gone, "red", host, 0)
	want(0, 1<<63, false)
	table.Forget(63, 10)
	want(10, 0, true)
	say(t, &table, 1, There, "red", host, 20) // back
	table.Sweep(10 + waitTime)
	want(10+waitTime, 1<<1, false)
	say(t, &table, 1, Gone, "red", host, 30)
	want(29+waitTime, 0, true)
	due, any := table.Due()
	testutil.Holds(t, due == 30+waitTime && any, "due at %d, %v", due, any)
	want(30+waitTime, 0, false) // before Sweep
	say(t, &table, 1, There, "red", host, 31)
	say(t, &table, 1, Gone, "red", host, 40) // again, while it was waited for
	table.Sweep(30 + waitTime)
	want(39+waitTime, 0, true)
	table.Sweep(40 + waitTime)
	if _, any := table.Due(); any || len(table.keys)+len(table.waits) != 0 || table.counts != [MaxServers]Count{} {
		t.Errorf("something is left: %+v", table)
	}
	for kind := Agent; kind <= AnyPrefix; kind++ {
		say(t, &table, 1, There, "red", Key{Kind: kind}, 0)
		at, _ := table.Find("red", Key{Kind: kind}, 0)
		testutil.Equal(t, at, 1<<1, "servers with a key of kind %d", kind)
		testutil.Equal(t, kind.Broad(), kind >= DefaultRoute, "kind %d is broad", kind)
	}
	testutil.Equal(t, table.Count(1), Count{Routes: 8, Agents: 1}, "what was told")
	table = Table{}
	say(t, &table, 1, There, "red", Key{}, 0)
	say(t, &table, 1, There, "red", Key{Kind: AnyPrefix + 1}, 0)
	say(t, &table, 1, 7, "red", host, 0)
	testutil.Equal(t, len(table.keys), 0, "what a later version tells is not skipped")
}

// The longest prefix wins, and those of IPv6 have no IPv4 addresses.
func TestLongest(t *testing.T) {
	var table Table
	for server, text := range []string{"10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0", "::/0", "fd00::/64", "::ffff:0:0/95"} {
		p := netip.MustParsePrefix(text)
		say(t, &table, server, There, "", OfPrefix(p.Addr(), p.Bits()), 0)
		say(t, &table, 9, There, "", OfPrefix(p.Addr(), p.Bits()), 0)
		say(t, &table, 9, There, "", OfAddr(p.Addr()), 0)
	}
	table.Forget(9, 0)
	for _, c := range []struct {
		address string
		least   int
		want    Servers
	}{
		{"10.1.2.3", -1, 1 << 1}, {"10.2.2.3", -1, 1 << 0}, {"10.1.2.3", 96 + 16, 0}, {"10.1.2.3", 96 + 15, 1 << 1},
		{"11.0.0.1", -1, 1 << 2}, {"fd00::1", -1, 1 << 4}, {"fd01::1", -1, 1 << 3}, {"fd00::1", 64, 0},
	} {
		at, _ := table.Longest("", netip.MustParseAddr(c.address), c.least, 0)
		testutil.Holds(t, at == c.want, "%s beyond %d bits: %b, want %b", c.address, c.least, at, c.want)
	}
	table.Forget(1, 5)
	at, _ := table.Longest("", netip.MustParseAddr("10.1.2.3"), -1, 6)
	testutil.Holds(t, at == 1<<0, "the next shorter is not found: %b", at)
	table.Forget(0, 5)
	table.Forget(2, 5)
	at, waited := table.Longest("", netip.MustParseAddr("10.1.2.3"), -1, 6)
	testutil.Holds(t, at == 0 && waited, "one that is gone: %b, waited for: %v", at, waited)
	for range 2 {
		say(t, &table, 3, Gone, "", OfPrefix(netip.IPv6Unspecified(), 0), 5)
		say(t, &table, 3, There, "", OfPrefix(netip.IPv6Unspecified(), 0), 5)
	}
	say(t, &table, 3, Gone, "", OfPrefix(netip.IPv6Unspecified(), 0), 5)
	table.Sweep(5 + waitTime)
	testutil.EqualSlices(t, table.lengths, Lengths{{95, 1}, {64, 1}}, "lengths")
}

// What one server tells is bounded, also what it tells and takes back.
func TestTableIsBounded(t *testing.T) {
	var table Table
	k := Key{Kind: Agent}
	for i := range 3 * MaxRoutes {
		k.Value = [16]byte{byte(i), byte(i >> 8), byte(i >> 16)}
		err := table.Learn(0, Record{There, "", k}, 0)
		testutil.Requires(t, (err == nil) == (i < MaxRoutes), "key %d: %v", i, err)
		if i == MaxRoutes {
			break
		}
	}
	table.Forget(0, 0)
	for i := range 100 {
		k.Value = [16]byte{15: byte(i + 1)}
		say(t, &table, 1, There, "", k, 0)
		say(t, &table, 1, Gone, "", k, 0)
	}
	testutil.Holds(t, len(table.keys) <= MaxRoutes && len(table.waits) <= MaxRoutes,
		"%d keys, %d waits", len(table.keys), len(table.waits))
}

// A peer is told the last of several changes, and when that was all.
func TestFeed(t *testing.T) {
	var f Feed
	for i := range 1000 {
		f.Put("red", OfText(Host, fmt.Sprint(i)), true)
	}
	f.PutAll()
	gone := OfText(Host, "7")
	f.Put("red", gone, false)
	var all []byte
	for pieces := 0; ; pieces++ {
		piece := f.Take(4096)
		if len(piece) == 0 {
			break
		}
		testutil.Requires(t, len(piece) <= 4096+300 && pieces <= 20, "piece %d has %d bytes", pieces, len(piece))
		all = append(all, piece...)
	}
	var table Table
	in := bufio.NewReader(bytes.NewReader(all))
	ends := 0
	for {
		r, err := Read(in)
		if err != nil {
			break
		}
		if r.Op == All {
			ends++
		}
		testutil.NoError(t, table.Learn(3, r, 0))
	}
	at, _ := table.Find("red", gone, 0)
	there, _ := table.Find("red", OfText(Host, "8"), 0)
	if n := table.Count(3); n.Routes != 999 || at != 0 || there != 1<<3 || ends != 1 || len(f.Take(1)) > 0 {
		t.Errorf("%+v, one that is gone at %b, one that is not at %b, %d ends", n, at, there, ends)
	}
	for i := range MaxRoutes {
		f.Put("", Key{Kind: Agent, Value: [16]byte{byte(i), byte(i >> 8), byte(i >> 16)}}, true)
	}
	testutil.Holds(t, !f.Put("", Key{Kind: AnyAgent}, true), "what waits for a peer is not bounded")
}

// A record is read as it was, and no part of one is.
func TestRead(t *testing.T) {
	for _, r := range []Record{
		{There, "", OfText(Agent, "x")}, {Gone, strings.Repeat("a", MaxCluster), OfPrefix(netip.MustParseAddr("10.0.0.0"), 8)},
		{There, "red", OfAddr(netip.MustParseAddr("fe80::1%eth0"))},
	} {
		b := r.Append(nil)
		testutil.Equal(t, testutil.Must(Read(bufio.NewReader(bytes.NewReader(b))))(t), r, "what is read")
		for n := range b {
			testutil.Fails(t, testutil.Err(Read(bufio.NewReader(bytes.NewReader(b[:n])))), "%d of %d bytes", n, len(b))
		}
		r.Cluster += strings.Repeat("b", MaxCluster)
		b = r.Append(nil)
		testutil.Equal(t, len(testutil.Must(Read(bufio.NewReader(bytes.NewReader(b))))(t).Cluster), MaxCluster, "bytes of a name that is too long")
	}
	testutil.Equal(t, OfAddr(netip.MustParseAddr("fe80::1%eth0")), OfText(Host, "fe80::1%eth0"), "an address with a zone")
}

// Whatever comes, Read returns it or an error.
func FuzzRead(f *testing.F) {
	f.Add(Record{There, "red", OfText(Agent, "x")}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bufio.NewReader(bytes.NewReader(b))
		var table Table
		for {
			r, err := Read(in)
			if err != nil {
				return
			}
			_ = table.Learn(0, r, 0)
			table.Longest(r.Cluster, netip.AddrFrom16(r.Key.Value), 0, 0)
		}
	})
}

// BenchmarkMemory is what an agent with an address and a host takes for each of two peers
// that have it: of a server with 1,000 clusters of 5 agents.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var table Table
		for i := range 5000 {
			cluster := fmt.Sprint("tenant-", i/5)
			for _, k := range []Key{OfText(Agent, fmt.Sprint(i)), OfText(Host, fmt.Sprint("h", i)), OfAddr(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})), {Kind: AnyAgent}, {Kind: AnyHost}} {
				for server := range 2 {
					_ = table.Learn(server, Record{There, string([]byte(cluster)), k}, 0)
				}
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/5000/2, "B/agent/peer")
		runtime.KeepAlive(&table)
	}
}
