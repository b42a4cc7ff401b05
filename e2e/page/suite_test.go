package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/e2e/suite"
	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// world is a real suite on loopback: a server, an agent and both sidecars in
// one, with the addresses of their admin ports.
type world struct {
	*suite.Suite
	t                     *testing.T
	srv                   *suite.Server
	front                 string // of SOCKS5
	server, agent, socks5 string // admin
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := suite.ForTest(t, binaries)
	w := &world{Suite: s, t: t}
	w.srv = must(s.StartServer())(t)
	a := must(s.StartAgent(w.srv, "--agent-id=node-1"))(t)
	w.socks5 = testutil.ReservedAddress(t)
	side := must(s.StartSOCKS5(w.srv, "--admin-address="+w.socks5))(t)
	w.front, w.server, w.agent = side.Address(), suite.Loopback(w.srv.AdminPort), suite.Loopback(a.AdminPort)
	return w
}

// dial opens a connection through everything.
func (w *world) dial(address string) net.Conn {
	w.t.Helper()
	d := must(proxy.SOCKS5("tcp", w.front, nil, nil))(w.t)
	c := must(d.Dial("tcp", address))(w.t)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// stalled waits until the API tells of a stalled connection that is not among
// known, and returns its id, when that was, and when the stall began.
func stalled(t *testing.T, address string, known map[string]bool) (id string, told, began time.Time) {
	t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(30 * time.Millisecond) {
		res, err := client.Get("http://" + address + "/api/v1/connections?state=stalled")
		if err != nil {
			continue
		}
		var page admin.Page[admin.Connection]
		err = json.NewDecoder(res.Body).Decode(&page)
		_ = res.Body.Close()
		testutil.NoError(t, err)
		for _, c := range page.Items {
			if !known[c.ID] {
				known[c.ID] = true
				now := time.Now()
				return c.ID, now, now.Add(-time.Duration(c.StalledFor * float64(time.Second)))
			}
		}
	}
	t.Fatal("no connection shows as stalled")
	return
}

// A stall shows within 2 s of its beginning. One of several tries is enough, because
// the test is for pages that look too seldom, not for a busy machine.
func TestStallShowsWithinTwoSeconds(t *testing.T) {
	w := newWorld(t)
	sends := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(c, endless{}) })
	b := openTab(t)
	b.open("http://" + w.server)
	known := map[string]bool{}
	var delays []time.Duration
	for len(delays) < 3 || slices.Min(delays) > 2*time.Second && len(delays) < 15 {
		c := w.dial(sends) // and never reads
		id, told, began := stalled(t, w.server, known)
		b.until("the stall", `stalledAt['`+id+`'] !== undefined`)
		var ms int64
		_, _ = fmt.Sscan(b.eval(`stalledAt['`+id+`']`), &ms)
		shown := time.UnixMilli(ms)
		delays = append(delays, shown.Sub(began))
		t.Logf("the page shows the stall %v after it began, %v after the API told it", shown.Sub(began).Round(time.Millisecond), shown.Sub(told).Round(time.Millisecond))
		_ = c.Close()
	}
	testutil.AtMost(t, slices.Min(delays), 2*time.Second, "the shortest delay")
	b.quiet("http://" + w.server)
}

// endless is zeros.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Each process shows the chain from where it stands, and the server's page finds
// it again after a restart.
func TestTheChainFromEveryProcessAndARestart(t *testing.T) {
	w := newWorld(t)
	echo := testutil.Echo(t)
	c := w.dial(echo)
	var trips sync.WaitGroup
	trips.Go(func() { _, _ = io.Copy(c, &ticking{}) })
	trips.Go(func() { _, _ = io.Copy(io.Discard, c) })
	defer trips.Wait()
	defer c.Close()

	b := openTab(t)
	for _, p := range []struct{ at, left, right string }{
		{w.server, "socks5-proxy 127.0.0.1", "node-1"}, {w.agent, "", echo}, {w.socks5, "127.0.0.1", ""},
	} {
		b.open("http://" + p.at)
		for side, name := range map[string]string{"left": p.left, "right": p.right} {
			b.until(p.at+" shows "+name+" "+side+" with a rate", `[...document.querySelectorAll('#`+side+` .peer')].some(p => p.textContent.includes('`+name+`') && /\d B\/s/.test(p.textContent))`)
		}
		b.until("the connection", `document.querySelector('#rows tr.active button')?.textContent === '`+echo+`'`)
		b.quiet("http://" + p.at)
		b.asked = nil
	}

	b.open("http://" + w.server)
	w.srv.Kill() // in order it would wait for the connection
	b.until("word of the stop", `document.body.dataset.state === 'lost' && document.querySelector('#lost').textContent.includes('No answer since')`)
	testutil.NoError(t, w.RunServer(w.srv))
	t.Log("found again:", b.until("the server after its restart", `document.body.dataset.state === 'live' && document.querySelector('#lost').hidden`))
	b.until("the agent after the restart", `document.querySelector('#right .peer')?.textContent.includes('node-1') && document.querySelector('#ready').textContent === '✓ ready'`)
}

// ticking is a little every 50 ms.
type ticking struct{}

func (*ticking) Read(p []byte) (int, error) {
	time.Sleep(50 * time.Millisecond)
	return min(len(p), 64), nil
}

// Fifty open pages do not slow transfers. It is measured without and with pages in
// turn, and the best turn of each counts, so that other work of the machine does not.
func TestFiftyPagesSlowNoTransfer(t *testing.T) {
	w := newWorld(t)
	echo := testutil.Echo(t)
	for range 200 {
		w.dial(echo)
	}
	c := w.dial(echo)
	var alone, beside [][2]time.Duration
	for range 3 {
		alone = append(alone, roundTrips(t, c))
		beside = append(beside, besidePages(t, w.server, 50, c))
	}
	t.Logf("round trips, p50 and p99: %v alone; %v beside 50 pages", alone, beside)
	p99 := func(turns [][2]time.Duration) time.Duration {
		return slices.MinFunc(turns, func(a, b [2]time.Duration) int { return cmp.Compare(a[1], b[1]) })[1]
	}
	testutil.AtMost(t, p99(beside), 250*time.Millisecond+4*p99(alone), "p99")
}

// besidePages is roundTrips while pages are open, each of which gets answers.
func besidePages(t *testing.T, address string, pages int, c net.Conn) [2]time.Duration {
	t.Helper()
	stop := make(chan struct{})
	var open sync.WaitGroup
	answers := make([]int, pages)
	for i := range answers {
		open.Go(func() { answers[i] = poll(address, stop) })
	}
	trips := roundTrips(t, c)
	close(stop)
	open.Wait()
	testutil.Holds(t, slices.Min(answers) != 0, "a page got no answer")
	return trips
}

// poll asks as the page does, until stop, and returns how often it was answered.
func poll(address string, stop <-chan struct{}) (answered int) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	for {
		for _, ask := range []string{"status", "connections?limit=95&sort=-state", "peers?sort=-rate&limit=6&role=agent", "peers?sort=-rate&limit=6&role=client", "failures?limit=50", "history"} {
			res, err := client.Get("http://" + address + "/api/v1/" + ask)
			if err != nil {
				continue
			}
			if _, err := io.Copy(io.Discard, res.Body); err == nil && res.StatusCode == http.StatusOK {
				answered++
			}
			_ = res.Body.Close()
		}
		select {
		case <-stop:
			return answered
		case <-time.After(700 * time.Millisecond):
		}
	}
}

// roundTrips measures for a second and returns the median and the 99th percentile.
func roundTrips(t *testing.T, c net.Conn) [2]time.Duration {
	t.Helper()
	var all []time.Duration
	buf := make([]byte, 64)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		start := time.Now()
		testutil.Must(c.Write(buf))(t)
		testutil.Must(io.ReadFull(c, buf))(t)
		all = append(all, time.Since(start))
		time.Sleep(time.Millisecond)
	}
	slices.Sort(all)
	return [2]time.Duration{all[len(all)/2], all[len(all)*99/100]}
}

// What quickstart prints leads to a page with its sidecar and its agent.
func TestQuickstartServesThePage(t *testing.T) {
	p := must(suite.Start("quickstart", binaries.Path("konnectivity"), []string{"quickstart"}, nil))(t)
	t.Cleanup(p.Kill)
	printed := regexp.MustCompile(`(?m)^ +(http://127\.0\.0\.1:\d+)/$`)
	var at []string
	for end := time.Now().Add(patience); at == nil; time.Sleep(pollInterval) {
		if at = printed.FindStringSubmatch(p.Output()); at == nil && time.Now().After(end) {
			t.Fatalf("no page is told of:\n%s", p.Output())
		}
	}
	b := openTab(t)
	b.open(at[1])
	b.until("the agent", `document.querySelector('#right .peer')?.textContent.includes('quickstart-agent')`)
	b.until("the sidecar", `document.querySelector('#left .peer')?.textContent.includes('quickstart')`)
	b.quiet(at[1])
	testutil.NoError(t, p.Signal(syscall.SIGINT))
	code, err := p.Wait(patience)
	testutil.Holds(t, err == nil && code == 0, "it ends with %d, %v", code, err)
}
