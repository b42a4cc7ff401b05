package page

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// axe-core is Deque's; it is fetched for the test and never kept.
const (
	axeURL    = "https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz"
	axeSHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
	axeFile   = "package/axe.min.js"
)

// axeCore is the script. Without a network there is none, and the test skips; a
// package that is another than the pinned one fails it.
func axeCore(t *testing.T) string {
	t.Helper()
	client := &http.Client{Timeout: patience}
	defer client.CloseIdleConnections()
	var archive []byte
	var err error
	for try := range 3 {
		time.Sleep(time.Duration(try) * time.Second)
		if archive, err = download(client, axeURL); err == nil {
			break
		}
	}
	if err != nil {
		t.Skipf("no network to fetch axe-core by: %v", err)
	}
	sum := sha512.Sum512(archive)
	testutil.Requires(t, base64.StdEncoding.EncodeToString(sum[:]) == axeSHA512, "axe-core is not what it was")
	files := tar.NewReader(must(gzip.NewReader(bytes.NewReader(archive)))(t))
	for {
		head, err := files.Next()
		testutil.Requires(t, err == nil, "no %s in axe-core: %v", axeFile, err)
		if head.Name == axeFile {
			return string(must(io.ReadAll(files))(t))
		}
	}
}

func download(client *http.Client, url string) ([]byte, error) {
	res, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, 16<<20))
}

// TestAxeFindsNothing has axe-core look at the page in all its states, with all
// of its rules.
func TestAxeFindsNothing(t *testing.T) {
	axe := axeCore(t)
	s := lively(t)
	many := hosted(t)
	empty := newScene(t, func(o *admin.Source) { o.Ready = func() error { return fmt.Errorf("no agent is connected") } })
	b := openTab(t)
	check := func(state string) {
		t.Helper()
		b.eval(`Promise.all(document.getAnimations().map(a => a.effect.getTiming().iterations === Infinity ? 0 : a.finished.catch(() => 0))).then(() => 0)`)
		found := b.eval(`axe.run(document).then(r => (r.passes.length > 15 ? '' : 'axe-core looked at too little') + r.violations.map(v => v.id + ' (' + v.help + '): ' +
			v.nodes.slice(0, 5).map(n => n.html + ' ' + n.any.concat(n.all).map(c => c.message).join('; ')).join(' | ')).join('\n'))`)
		testutil.Equal(t, found, "", "%s", state)
	}
	for _, dark := range []bool{false, true} {
		for _, width := range []int{1280, 375} {
			b.dark(dark)
			b.size(width, 900, width == 375)
			at := fmt.Sprintf("dark %v, %d px", dark, width)
			b.open(empty.url())
			b.eval(axe)
			b.until("word of no agent", `document.querySelector('#right .none.bad') !== null`)
			check("empty, " + at)
			b.open(many.url())
			b.eval(axe)
			// All rows are alike, and axe-core takes its time for each.
			b.eval(`for (const [id, text] of [['tenants-filter', 'cluster-061'], ['filter', 'backup']]) { const e = document.getElementById(id); e.value = text; e.dispatchEvent(new Event('input')); }`)
			b.until("the tenants", `document.querySelectorAll('#tenants-rows tr').length === 12 && document.querySelectorAll('#rows tr').length === 3 && document.querySelector('#tenants-rows tr.broken') !== null && document.querySelector('#right .peer') !== null`)
			check("tenants, " + at)
			b.eval(`document.querySelector('#tenants-rows tr.broken button').click()`)
			b.until("one of them", `document.querySelector('#tenant-facts dd') !== null && document.body.dataset.view === 'tenant'`)
			check("a tenant, " + at)
			b.open(s.url())
			b.eval(axe)
			b.until("the stall", `document.querySelector('#rows tr.stalled') !== null && document.querySelectorAll('#failures li').length > 0`)
			check("lively, " + at)
			b.eval(`document.querySelector('#rows tr.stalled button').click()`)
			b.until("the hops", `document.querySelector('#hops').textContent.includes('round trip')`)
			check("a connection, " + at)
			b.eval(`document.querySelector('#detail').close()`)
			s.stop()
			b.until("word of its going", `!document.querySelector('#lost').hidden`)
			check("gone, " + at)
			s.serve()
		}
	}
}
