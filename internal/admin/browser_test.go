package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"konnectivity/internal/testport"
	"konnectivity/tunnel"
)

// browser is a page in headless Chromium, driven by its DevTools protocol.
type browser struct {
	t      *testing.T
	conn   *websocket.Conn
	id     int
	faults []string // errors on the console
}

// startBrowser skips the test where there is no Chromium.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--remote-debugging-port=0", "--remote-allow-origins=*", "--window-size=1200,1000", "--user-data-dir="+t.TempDir())
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if _, at, ok := strings.Cut(lines.Text(), "DevTools listening on ws://"); ok {
				found <- at
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = cmd.Wait()
	})
	select {
	case at := <-found:
		return openPage(t, strings.SplitN(at, "/", 2)[0])
	case <-read:
		t.Skip("chromium does not start here")
	case <-time.After(30 * time.Second):
		t.Fatal("chromium does not come up")
	}
	return nil
}

func openPage(t *testing.T, at string) *browser {
	t.Helper()
	req, _ := http.NewRequest(http.MethodPut, "http://"+at+"/json/new?about:blank", nil)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var page struct{ WebSocketDebuggerURL string }
	if err := json.NewDecoder(res.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	conn, err := websocket.Dial(page.WebSocketDebuggerURL, "", "http://127.0.0.1/")
	if err != nil {
		t.Fatal(err)
	}
	conn.MaxPayloadBytes = 64 << 20
	t.Cleanup(func() { _ = conn.Close() })
	b := &browser{t: t, conn: conn}
	for _, domain := range []string{"Runtime", "Log", "Page"} {
		b.call(domain+".enable", nil)
	}
	return b
}

// call sends a command and returns its result; what the console says meanwhile
// is kept.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.id++
	if params == nil {
		params = struct{}{}
	}
	_ = b.conn.SetDeadline(time.Now().Add(30 * time.Second))
	if err := websocket.JSON.Send(b.conn, map[string]any{"id": b.id, "method": method, "params": params}); err != nil {
		b.t.Fatal(err)
	}
	for {
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := websocket.JSON.Receive(b.conn, &m); err != nil {
			b.t.Fatal(err)
		}
		switch {
		case m.Method == "Runtime.exceptionThrown", m.Method == "Runtime.consoleAPICalled", m.Method == "Log.entryAdded":
			b.faults = append(b.faults, string(m.Params))
		case m.ID == b.id && m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		case m.ID == b.id && m.Method == "":
			return m.Result
		}
	}
}

// eval runs a script in the page and returns its value as text.
func (b *browser) eval(script string) string {
	b.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	result := b.call("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true})
	if err := json.Unmarshal(result, &out); err != nil || out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %v %s", script, err, result)
	}
	return fmt.Sprint(out.Result.Value)
}

// until waits for a condition in the page and returns how long that took.
func (b *browser) until(what, condition string) time.Duration {
	b.t.Helper()
	start := time.Now()
	for b.eval(condition) != "true" {
		if time.Since(start) > 20*time.Second {
			b.t.Fatalf("%s does not come; the page says\n%s", what, b.eval("document.body.innerText.slice(0, 3000)"))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(start)
}

// site serves a handler at an address that it keeps over restarts.
type site struct {
	address string
	stop    func()
}

func (s *site) start(t *testing.T, h http.Handler) {
	t.Helper()
	if s.address == "" {
		s.address = testport.ReservedAddress(t)
	}
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	s.stop = sync.OnceFunc(func() { _ = server.Close(); <-done })
}

func TestThePageInABrowser(t *testing.T) {
	b := startBrowser(t)
	tr := &traffic{t: t, table: NewTable()}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { tr.table.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for i := range 10000 {
		near, far := net.Pipe()
		tr.table.Opened(&tunnel.Request{ID: fmt.Sprintf("id-%05d", i), Front: "link", Address: fmt.Sprintf("host-%d.test:443", i%500), Source: tunnel.Addr{Text: "10.0.0.1:1"}},
			&tunnel.Relay{A: tunnel.Wrap(near), B: tunnel.Wrap(far)})
	}
	tr.table.Dialed(&tunnel.Request{ID: "f", Address: "<b>evil</b>:1"}, time.Second, &tunnel.DialError{Failure: tunnel.FailDenied})
	handler := mounted(Source{Component: "konnectivity-server", ID: "<i>me</i>", Table: tr.table, More: func(s *Status) { s.Peers[RoleAgent] = 0 }})
	s := &site{}
	s.start(t, handler)
	defer func() { s.stop() }()

	b.call("Page.navigate", map[string]any{"url": "http://" + s.address + "/"})
	b.until("the list", `document.querySelector('#count')?.textContent === '10,000 connections'`)
	b.until("the failure, as text", `document.querySelector('#failures')?.textContent.includes('<b>evil</b>') && !document.querySelector('#failures b')`)
	if rows := b.eval(`document.querySelectorAll('#rows tr').length`); len(rows) > 3 {
		t.Errorf("%s rows are in the document; the list is not virtual", rows)
	}
	t.Log("scrolled to the middle:", b.until("the middle", `document.querySelector('#scroll').scrollTop = 160000, [...document.querySelectorAll('#rows tr')].some(r => r.getAttribute('aria-rowindex') === '5003')`))
	b.eval(`(() => { const f = document.querySelector('#filter'); f.value = 'HOST-77.'; f.dispatchEvent(new Event('input')); })()`)
	t.Log("filtered:", b.until("the filter", `document.querySelector('#count').textContent === '20 of 10,000 connections'`))
	b.eval(`(() => { const f = document.querySelector('#filter'); f.value = ''; f.dispatchEvent(new Event('input')); })()`)
	b.eval(`document.querySelector('th[data-key=id] button').click(), document.querySelector('th[data-key=id] button').click()`)
	t.Log("sorted:", b.until("the order", `document.querySelector('#rows tr:not(.gap)')?.children[1].textContent === 'id-09999'`))
	b.eval(`document.querySelector('th[data-key=state] button').click()`)

	client, target := tr.open(tunnel.Request{ID: "stuck", Front: "socks5", Network: "tcp", Address: "slow.test:1"})
	go func() { _, _ = client.Write([]byte("nobody reads this")) }()
	t.Log("stall shown:", b.until("the stall", `document.querySelector('#rows tr:not(.gap) .state.stalled + td')?.textContent === 'stuck'`))
	b.eval(`document.querySelector('#rows tr:not(.gap) button').click()`)
	b.until("the hops", `document.querySelector('#hops li.stalled')?.textContent.includes('does not read')`)
	b.eval(`document.querySelector('#detail').close()`)

	if len(b.faults) > 0 {
		t.Errorf("the console says %v", b.faults)
	}
	s.stop()
	b.until("word of the restart", `!document.querySelector('#lost').hidden`)
	s.start(t, handler)
	b.until("the process after its restart", `document.querySelector('#lost').hidden`)
	client.Close()
	_, _ = io.Copy(io.Discard, target)
	target.Close()
	tr.all.Wait()
}
