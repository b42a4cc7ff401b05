package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// BenchmarkBesideANodesFlood compares requests of a node's program to the API server, one
// connection each, while another node floods the same server, with those by a server of its
// own that no node floods. Both are asked in turn, 200 times a second each, so what the flood,
// the API server and other work take of the machine delays both alike; what differs is what it
// costs to share a server with the flood. Each of b.N rounds takes 4 s. It reports the medians
// of the rounds' ratios.
func BenchmarkBesideANodesFlood(b *testing.B) {
	for _, flood := range []struct {
		what            string
		perSecond, size int // perSecond 0: 64 at a time
	}{
		{"no flood", 0, 0},
		{"200 a second, 100 KB each", 200, 100e3},
		{"1000 a second, 10 KB each", 1000, 10e3},
		{"64 at a time, 10 KB each", 0, 10e3},
		{"64 at a time, 10 MB each", 0, 10e6},
	} {
		for _, way := range []string{"by server", "by agent"} {
			b.Run(way+", "+flood.what, func(b *testing.B) {
				nodes := floodedNodes(b, way == "by agent")
				stop := func() {}
				if flood.size > 0 {
					stop = floods(nodes[0], flood.perSecond, flood.size)
				}
				defer stop()
				var p50s, p99s []float64
				for b.Loop() {
					shared, alone := besideEachOther(b, nodes[1], nodes[2])
					b.Logf("p50 %v and %v, p99 %v and %v", part(shared, 50), part(alone, 50), part(shared, 99), part(alone, 99))
					p50s = append(p50s, float64(part(shared, 50))/float64(part(alone, 50)))
					p99s = append(p99s, float64(part(shared, 99))/float64(part(alone, 99)))
				}
				slices.Sort(p50s)
				slices.Sort(p99s)
				b.ReportMetric(p50s[len(p50s)/2], "p50-ratio")
				b.ReportMetric(p99s[len(p99s)/2], "p99-ratio")
			})
		}
	}
}

// floodedNodes are where programs of three nodes reach their API server: of two that share a
// server, and of one that has a server to itself. With beside, agents beside the API server
// dial for the servers.
func floodedNodes(b *testing.B, beside bool) (nodes [3]string) {
	s := suite.ForTest(b, binaries)
	api := testutil.Serve(b, serveSizes)
	named := api
	if beside {
		named = "agent"
	}
	var servers [2]*suite.Server
	for i := range servers {
		servers[i] = must(s.StartServer("--api-server=" + named))(b)
		if beside {
			must(s.StartAgent(servers[i], "--api-server="+api, fmt.Sprintf("--proxy-server-port=%d", servers[i].ClientPort),
				"--agent-cert="+s.PKI("client.crt"), "--agent-key="+s.PKI("client.key")))(b)
		}
	}
	for i, srv := range []*suite.Server{servers[0], servers[0], servers[1]} {
		nodes[i] = suite.Loopback(testutil.Reserved(b))
		must(s.StartAgent(srv, "--api-bind="+nodes[i]))(b)
		eventually(b, patience, "a node's way", func() (bool, any) { err := fetchSize(nodes[i], 1); return err == nil, err })
	}
	return nodes
}

// serveSizes answers each four bytes with as many bytes as they say.
func serveSizes(c *net.TCPConn) {
	junk := make([]byte, 64<<10)
	for {
		var size uint32
		if binary.Read(c, binary.BigEndian, &size) != nil {
			return
		}
		for n := int(size); n > 0; n -= len(junk) {
			if _, err := c.Write(junk[:min(n, len(junk))]); err != nil {
				return
			}
		}
	}
}

// fetchSize has serveSizes answer on a connection of its own.
func fetchSize(address string, size int) error {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0) // thousands would use up the ports
	_ = c.SetDeadline(time.Now().Add(patience))
	if err = binary.Write(c, binary.BigEndian, uint32(size)); err == nil {
		_, err = io.CopyN(io.Discard, c, int64(size))
	}
	return err
}

// floods fetches answers until stop: so many a second, or else always 64 at a time.
func floods(address string, perSecond, size int) (stop func()) {
	const workers = 64
	stopped, began := make(chan struct{}), time.Now()
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for i := w; ; i += workers {
				var due time.Duration
				if perSecond > 0 {
					due = time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(perSecond)))
				}
				select {
				case <-stopped:
					return
				case <-time.After(due):
					_ = fetchSize(address, size) // a flood that is refused is none of the others' matter
				}
			}
		})
	}
	return func() { close(stopped); working.Wait() }
}

// besideEachOther is how long requests by two ways took, sorted. None may fail. They come at
// random, or else those by one way alone might always meet the flood's.
func besideEachOther(b *testing.B, ways ...string) (first, second []time.Duration) {
	const each, perSecond = 800, 200
	took := [2][]time.Duration{make([]time.Duration, each), make([]time.Duration, each)}
	var working sync.WaitGroup
	began := time.Now()
	for i := range 2 * each {
		time.Sleep(time.Until(began.Add(time.Duration((float64(i) + rand.Float64()) * float64(time.Second) / (2 * perSecond)))))
		working.Go(func() {
			start := time.Now()
			testutil.Succeeds(b, fetchSize(ways[i%2], 100), "a request")
			took[i%2][i/2] = time.Since(start)
		})
	}
	working.Wait()
	slices.Sort(took[0])
	slices.Sort(took[1])
	return took[0], took[1]
}

// part is the duration that so many of a hundred are within.
func part(sorted []time.Duration, percent int) time.Duration {
	return sorted[len(sorted)*percent/100]
}
