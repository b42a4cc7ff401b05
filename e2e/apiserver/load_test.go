package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// loadPause is between two requests of one kind.
const loadPause = 25 * time.Millisecond

// load sends requests that pass the tunnel, one after the other, each on a connection
// of its own to a kube-apiserver, as a kubectl does.
type load struct {
	stop func()
	work sync.WaitGroup

	mu   sync.Mutex
	sent map[string]int
	cut  []failure // requests that failed, and not when they were made again
	lost []failure // those that failed again
}

// failure is a request that failed, some time after it was made.
type failure struct {
	kind  string
	asked time.Time
	at    time.Time
	err   error
}

// request is one that the tunnel carries.
type request struct {
	method, path, body string
	right              func(status int, body string) bool
}

// requests are the kinds of load. Config maps are judged and then forgotten.
func requests() map[string]request {
	const configMap = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "judged-", "labels": {"judged": "true"}}, "data": {"verdict": %q}}`
	const judged = "/api/v1/namespaces/apps/configmaps?dryRun=All"
	return map[string]request{
		"log": {"GET", "/api/v1/namespaces/apps/pods/hello/log", "", func(status int, body string) bool { return isWholeLog(body) }},
		"aggregated list": {"GET", "/apis/example.test/v1/namespaces/apps/widgets", "", func(status int, body string) bool {
			return status == http.StatusOK && strings.Contains(body, `"first"`)
		}},
		"webhook that allows": {"POST", judged, fmt.Sprintf(configMap, "allow"), func(status int, _ string) bool { return status == http.StatusCreated }},
		"webhook that denies": {"POST", judged, fmt.Sprintf(configMap, "deny"), func(_ int, body string) bool { return strings.Contains(body, "the judge said no") }},
	}
}

// press starts the load. kube-apiserver keeps connections to kubelets, webhooks
// and APIs for many requests; only exec has one of its own each time.
func (w *world) press() *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel, sent: map[string]int{}}
	for kind, r := range requests() {
		client := w.client()
		l.work.Go(func() { l.repeat(ctx, kind, func() error { return w.ask(client, r) }) })
	}
	l.work.Go(func() {
		l.repeat(ctx, "exec", func() error {
			got, err := w.try("hello", "--server="+w.frontURL(), "exec", "-i", "-n", "apps", "hello", "--", "cat")
			if err == nil && got != "hello" {
				err = fmt.Errorf("exec printed %q", got)
			}
			return err
		})
	})
	return l
}

// repeat asks until ctx ends, and once more what failed. kube-apiserver may have several idle
// connections to a webhook, which are cut together: it needs a moment to notice.
func (l *load) repeat(ctx context.Context, kind string, ask func() error) {
	for ctx.Err() == nil {
		asked := time.Now()
		err := ask()
		at, again := time.Now(), error(nil)
		if err != nil {
			time.Sleep(10 * loadPause)
			again = ask()
		}
		l.mu.Lock()
		l.sent[kind]++
		switch {
		case again != nil:
			l.lost = append(l.lost, failure{kind, asked, at, fmt.Errorf("%w, and then %w", err, again)})
		case err != nil:
			l.cut = append(l.cut, failure{kind, asked, at, err})
		}
		l.mu.Unlock()
		time.Sleep(loadPause)
	}
}

// end stops the load, and waits for the last answers.
func (l *load) end() {
	l.stop()
	l.work.Wait()
}

// ask sends one request.
func (w *world) ask(client *http.Client, r request) error {
	req, err := http.NewRequest(r.method, w.frontURL()+r.path, strings.NewReader(r.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && !r.right(res.StatusCode, string(body)) {
		err = fmt.Errorf("%s: %.300s", res.Status, body)
	}
	return err
}

// follower is a kubectl logs -f.
type follower struct {
	stop  func()
	done  chan struct{}
	ended time.Time // from here on valid once done is closed
	lines int
	err   error // about what it printed
}

func (w *world) follow() *follower {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := w.kubectl(ctx, "", "--server="+w.frontURL(), "logs", "-n", "apps", "-f", "hello")
	out := must(cmd.StdoutPipe())(w.t)
	if err := cmd.Start(); err != nil {
		cancel()
		w.t.Fatal(err)
	}
	f := &follower{stop: cancel, done: make(chan struct{})}
	first := make(chan struct{})
	go func() {
		defer close(f.done)
		f.read(out, sync.OnceFunc(func() { close(first) }))
		f.ended = time.Now()
		_ = cmd.Wait()
	}()
	w.t.Cleanup(func() { cancel(); <-f.done })
	select {
	case <-first:
	case <-f.done:
		w.t.Fatal("kubectl logs -f ended at once")
	case <-time.After(patience):
		w.t.Fatal("kubectl logs -f prints nothing")
	}
	return f
}

// read expects every line in its order, and the last one whole or cut.
func (f *follower) read(out io.Reader, printed func()) {
	for lines := bufio.NewScanner(out); lines.Scan(); f.lines++ {
		if want := logLine(f.lines); lines.Text() != want && f.err == nil {
			f.err = fmt.Errorf("kubectl logs -f printed %q in place of %q", lines.Text(), want)
		}
		printed()
	}
}

// runs says whether f still follows.
func (f *follower) runs() bool {
	select {
	case <-f.done:
		return false
	default:
		return true
	}
}
