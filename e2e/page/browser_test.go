package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

const (
	// comesUp is how long chromium may take to start on a busy machine.
	comesUp = 2 * time.Minute

	// patience bounds every wait for something that happens at once, or for axe-core, which
	// takes seconds on an idle machine.
	patience = 2 * time.Minute

	// pollInterval is the pause between two checks of a condition in a page.
	pollInterval = 20 * time.Millisecond
)

// chromium is a browser that runs.
type chromium struct {
	address string // of its DevTools
	*suite.Process
	dir string
}

// startChromium tries twice: a machine that runs many things at once may keep
// the first from coming up.
func startChromium() (*chromium, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, errors.New("chromium is not installed; .ci/install installs it")
	}
	c, err := launch(path)
	if err != nil {
		return launch(path)
	}
	return c, nil
}

func launch(path string) (*chromium, error) {
	dir, err := os.MkdirTemp("", "kpage")
	if err != nil {
		return nil, err
	}
	// No sandbox: containers have no user namespaces, and only our own page is
	// shown. Nothing that it does by itself may ask the network.
	p, err := suite.Start("chromium", path, []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows",
		"--no-proxy-server", "--force-color-profile=srgb", "--font-render-hinting=none", "--hide-scrollbars",
		"--remote-debugging-port=0", "--remote-allow-origins=*", "--user-data-dir=" + dir}, nil)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	c := &chromium{Process: p, dir: dir}
	for deadline := time.After(comesUp); ; {
		_, at, _ := strings.Cut(p.Output(), "DevTools listening on ws://")
		if address, _, found := strings.Cut(at, "/"); found {
			c.address = address
			return c, nil
		}
		select {
		case <-time.After(pollInterval):
			continue
		case <-p.Done():
		case <-deadline:
		}
		c.close()
		return nil, fmt.Errorf("chromium has ended, or does not come up in %v:\n%.4096s", comesUp, p.Output())
	}
}

func (c *chromium) close() {
	c.Kill()
	_ = os.RemoveAll(c.dir)
}

// browser starts chromium for the first test that asks; running is it.
var (
	browser = sync.OnceValues(func() (_ *chromium, err error) {
		running, err = startChromium()
		return running, err
	})
	running *chromium
)

// tab is a page in the browser, driven by the DevTools protocol from one
// goroutine.
type tab struct {
	t      *testing.T
	conn   *websocket.Conn
	id     int
	faults []string // errors, and words on the console
	asked  []string // URLs of all requests
}

// openTab opens an empty page that lasts as long as the test.
func openTab(t *testing.T) *tab {
	t.Helper()
	c := testutil.Must(browser())(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	req, _ := http.NewRequest(http.MethodPut, "http://"+c.address+"/json/new?about:blank", nil)
	res := testutil.Must(client.Do(req))(t)
	defer res.Body.Close()
	var page struct{ ID, WebSocketDebuggerURL string }
	testutil.NoError(t, json.NewDecoder(res.Body).Decode(&page))
	conn := testutil.Must(websocket.Dial(page.WebSocketDebuggerURL, "", "http://127.0.0.1/"))(t)
	conn.MaxPayloadBytes = 64 << 20
	t.Cleanup(func() {
		_ = conn.Close()
		if res, err := client.Get("http://" + c.address + "/json/close/" + page.ID); err == nil {
			_ = res.Body.Close()
		}
	})
	b := &tab{t: t, conn: conn}
	for _, domain := range []string{"Runtime", "Log", "Page", "Network"} {
		b.call(domain+".enable", nil)
	}
	b.call("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": watcher})
	b.size(1280, 1000, false)
	return b
}

// watcher notes long tasks and gaps between frames, and when which connection
// first showed as stalled.
const watcher = `
window.longest = { task: 0, frame: 0 };
new PerformanceObserver(list => { for (const e of list.getEntries()) longest.task = Math.max(longest.task, e.duration); }).observe({ entryTypes: ['longtask'] });
let last = 0;
requestAnimationFrame(function frame(now) { if (last) longest.frame = Math.max(longest.frame, now - last); last = now; requestAnimationFrame(frame); });
window.stalledAt = {};
setInterval(() => { for (const tr of document.querySelectorAll('#rows tr.stalled')) stalledAt[tr.dataset.id] ??= Date.now(); }, 10);
`

// message is what the browser says: an answer, or an event.
type message struct {
	ID     int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Message string }
}

// call sends a command and returns its result; events meanwhile are kept.
func (b *tab) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.id++
	if params == nil {
		params = struct{}{}
	}
	_ = b.conn.SetDeadline(time.Now().Add(patience))
	testutil.NoError(b.t, websocket.JSON.Send(b.conn, map[string]any{"id": b.id, "method": method, "params": params}))
	for {
		var m message
		err := websocket.JSON.Receive(b.conn, &m)
		testutil.Requires(b.t, err == nil, "%s: %v", method, err)
		switch {
		case m.Method != "":
			b.event(m)
		case m.ID == b.id && m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		case m.ID == b.id:
			return m.Result
		}
	}
}

func (b *tab) event(m message) {
	switch m.Method {
	case "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded":
		b.faults = append(b.faults, string(m.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		_ = json.Unmarshal(m.Params, &p)
		b.asked = append(b.asked, p.Request.URL)
	}
}

// open shows a page and waits until it has drawn its figures.
func (b *tab) open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url})
	b.until("the page", `document.readyState === 'complete' && document.body?.dataset.state === 'live'`)
}

// eval runs a script in the page and returns its value as text.
func (b *tab) eval(script string) string {
	b.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	result := b.call("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true})
	err := json.Unmarshal(result, &out)
	testutil.Requires(b.t, err == nil && out.ExceptionDetails == nil, "%s: %v %s", script, err, result)
	if text, ok := out.Result.Value.(string); ok {
		return text
	}
	text, _ := json.Marshal(out.Result.Value)
	return string(text)
}

// until waits for a condition in the page and returns how long that took.
func (b *tab) until(what, condition string) time.Duration {
	b.t.Helper()
	start := time.Now()
	for b.eval(condition) != "true" {
		if time.Since(start) > patience {
			b.t.Fatalf("%s does not come; the page says\n%s\nthe console %s", what, b.eval("document.body.innerText.slice(0, 3000)"), b.faults)
		}
		time.Sleep(pollInterval)
	}
	return time.Since(start)
}

// quiet fails the test for anything on the console, and for requests to
// anywhere but origin.
func (b *tab) quiet(origin string) {
	b.t.Helper()
	for _, f := range b.faults {
		b.t.Errorf("the console says %s", f)
	}
	for _, url := range b.asked {
		testutil.Holds(b.t, strings.HasPrefix(url, origin+"/") || url == "about:blank", "the page asks %s", url)
	}
}

// size is that of the window, in CSS pixels.
func (b *tab) size(width, height int, phone bool) {
	b.t.Helper()
	scale := 1
	if phone {
		scale = 2
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone})
}

// dark picks a theme.
func (b *tab) dark(on bool) {
	b.t.Helper()
	theme := "light"
	if on {
		theme = "dark"
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": theme}}})
}

// keys are those that are pressed here, with the codes that the browser wants.
var keys = map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowUp": 38, "ArrowDown": 40, "Delete": 46, "/": 191}

// press presses a key; "Shift+Tab" is understood too.
func (b *tab) press(key string) {
	b.t.Helper()
	name, shift := strings.CutPrefix(key, "Shift+")
	modifiers := 0
	if shift {
		modifiers = 8
	}
	text := map[string]string{"Enter": "\r", "/": "/"}[name]
	for _, kind := range []string{"keyDown", "keyUp"} {
		p := map[string]any{"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": keys[name], "modifiers": modifiers}
		if kind == "keyDown" {
			p["text"] = text
		}
		b.call("Input.dispatchKeyEvent", p)
	}
}

// write types text.
func (b *tab) write(text string) {
	b.t.Helper()
	b.call("Input.insertText", map[string]any{"text": text})
}
