package page

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// smooth are bounds that a busy machine keeps, and a page that draws 10,000 rows
// does not.
const (
	smoothTask  = 1500.0 // ms
	smoothFrame = 3000.0
)

func TestTenThousandRowsAreSortedAndFilteredSmoothly(t *testing.T) {
	s := newScene(t, nil)
	s.crowd(10000)
	b := openTab(t)
	task, frame := smoothTask+1, smoothFrame+1
	for try := 0; try < 5 && (task > smoothTask || frame > smoothFrame); try++ { // other programs may have the processor for as long
		task, frame = b.useTenThousand(s.url())
		t.Logf("longest task %.0f ms, longest time between two frames %.0f ms", task, frame)
	}
	testutil.Holds(t, task <= smoothTask && frame <= smoothFrame,
		"want at most %.0f and %.0f", smoothTask, smoothFrame)
	b.quiet(s.url())
}

// useTenThousand sorts and filters as many rows, and returns the longest task and the longest
// time between two frames, in ms.
func (b *tab) useTenThousand(url string) (task, frame float64) {
	b.t.Helper()
	b.open(url)
	b.until("the list", `document.querySelector('#count').textContent === '10,000 open'`)
	testutil.Equal(b.t, b.eval(`document.querySelectorAll('#rows tr').length < 200`), "true",
		"the document holds few of the rows")
	b.eval(`longest.task = longest.frame = 0`)
	b.t.Log("sorted by id, descending:", b.sort("id", 2, "id-09999"))
	b.t.Log("sorted by id, ascending:", b.sort("id", 1, "id-00000"))
	b.eval(`document.querySelector('#scroll').scrollTop = 160000`)
	b.t.Log("scrolled to the middle:", b.until("the middle", `document.querySelector('#rows tr[aria-rowindex="5003"]')?.dataset.id === 'id-05001'`))
	b.eval(`document.querySelector('#filter').focus()`)
	b.write("HOST-77.")
	b.t.Log("filtered:", b.until("the filter", `document.querySelector('#count').textContent === '20 of 10,000 open'`))
	testutil.Equal(b.t, b.eval(`document.querySelector('#scroll').scrollTop`), "0", "where a new filter leaves the list")
	b.eval(`document.querySelector('#filter').select()`)
	b.write("no such host")
	b.until("word of none", `document.querySelector('#empty').textContent.includes('No connection matches')`)
	b.eval(`document.querySelector('#filter').select()`)
	b.press("Delete")
	b.until("the whole list", `document.querySelector('#count').textContent === '10,000 open'`)

	_, _ = fmt.Sscan(b.eval(`longest.task + ' ' + longest.frame`), &task, &frame)
	return task, frame
}

// sort clicks a head so many times and waits for the first row.
func (b *tab) sort(key string, clicks int, first string) time.Duration {
	b.t.Helper()
	for range clicks {
		b.eval(`document.querySelector('th[data-key=` + key + `] button').click()`)
	}
	return b.until("the order", `document.querySelector('#rows tr:not(.gap)')?.dataset.id === '`+first+`'`)
}

// focused returns the element with the focus, and fails the test if the focus is not
// visible.
func (b *tab) focused() string {
	b.t.Helper()
	name := b.eval(`(e => e.id || e.closest('th')?.dataset.key || (e.closest('tbody') ? 'row ' + e.closest('tr').getAttribute('aria-rowindex') : e.textContent.trim()))(document.activeElement)`)
	testutil.Equal(b.t, b.eval(`(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2)(getComputedStyle(document.activeElement))`),
		"true", "the focus on %q can be seen", name)
	return name
}

func TestKeyboardAlone(t *testing.T) {
	s := newScene(t, nil)
	s.crowd(300)
	s.table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: "f", Address: "a.test:1"}}, time.Second, &tunnel.DialError{Failure: tunnel.FailRefused})
	b := openTab(t)
	b.open(s.url())
	b.until("the list", `document.querySelector('#count').textContent === '300 open'`)
	b.until("the failure", `!document.querySelector('#failures').hidden`)

	want := []string{"Skip to the connections", "filter", "state", "state", "destination", "source", "front", "next", "since", "up", "down", "id", "row 2", "failures",
		"status", "connections", "peers", "failures", "history"}
	var got []string
	for range want {
		b.press("Tab")
		got = append(got, b.focused())
	}
	testutil.EqualSlices(t, got, want, "Tab goes")

	// Sort by a head, go through the rows, open one and come back.
	b.eval(`document.querySelector('th[data-key=state] button').focus()`)
	b.press("Tab")
	b.press("Enter")
	b.until("the order", `document.querySelector('th[data-key=destination]').getAttribute('aria-sort') === 'ascending' && document.querySelector('#rows tr:not(.gap)').dataset.id === 'id-00000'`)
	b.press("Enter")
	b.until("the other order", `document.querySelector('th[data-key=destination]').getAttribute('aria-sort') === 'descending' && document.querySelector('#rows tr:not(.gap)').dataset.id === 'id-00099'`)
	for range 8 {
		b.press("Tab")
	}
	b.press("ArrowDown")
	b.press("ArrowDown")
	testutil.Equal(t, b.focused(), "row 4", "two steps down")
	b.press("End")
	b.until("the last row", `document.activeElement.closest('tr')?.getAttribute('aria-rowindex') === '301'`)
	testutil.Equal(t, b.eval(`(r => r.top >= 0 && r.bottom <= document.querySelector('#scroll').getBoundingClientRect().bottom + 1)(document.activeElement.getBoundingClientRect())`),
		"true", "the last row, which has the focus, is to be seen")
	id := b.eval(`document.activeElement.closest('tr').dataset.id`)
	time.Sleep(time.Second) // the list is drawn anew meanwhile
	testutil.Equal(t, b.eval(`document.activeElement.closest('tr')?.dataset.id`), id, "the focus, a second later")
	b.press("Enter")
	b.until("the connection", `document.querySelector('#detail').open && document.querySelector('#facts').textContent.includes('`+id+`')`)
	b.press("Escape")
	b.until("the list again", `!document.querySelector('#detail').open && document.activeElement.closest('tr')?.dataset.id === '`+id+`'`)
	b.press("Home")
	b.until("the first row", `document.activeElement.closest('tr')?.getAttribute('aria-rowindex') === '2'`)
	b.press("/")
	testutil.Equal(t, b.focused(), "filter", "/ leads to")
	b.quiet(s.url())
}

// Peers choose their names. No name runs as script, hides anything, or reverses the
// direction of text.
func TestHostileNames(t *testing.T) {
	long := strings.Repeat("long-", 50)
	names := []string{
		`<script>window.hacked=1</script>`, `<img src=x onerror="window.hacked=1">`, `"><svg onload=window.hacked=1>`, `javascript:window.hacked=1`,
		"\u202egnp.exe", "zero\u200bwidth", "tag\U000e0041", "nul\x00and\x1b[31mred", "bücher.test", "日本語.test", long, `${window.hacked=1}`, `__proto__`,
	}
	s := newScene(t, func(o *admin.Source) {
		o.ID = names[0]
		o.Ready = func() error { return fmt.Errorf("%s", names[1]) }
		o.Peers = func() (all []admin.Peer) {
			for i, n := range names {
				all = append(all, admin.Peer{Role: []string{admin.RoleAgent, admin.RoleClient}[i%2], ID: n, Software: n, Remote: n, Identifiers: n, Protocol: n})
			}
			return all
		}
		o.More = func(s *admin.Status) { s.Strategies = map[string]int{names[0]: 1} }
	})
	for i, n := range names {
		s.connect(&tunnel.Flow{Request: tunnel.Request{ID: fmt.Sprint(i), Front: n, Address: n, Source: addr(n)}, Result: tunnel.Result{Hop: tunnel.Hop{Role: n}}}, 10, 10)
		s.table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: n, Front: n, Address: n, Source: addr(n)}, Result: tunnel.Result{Hop: tunnel.Hop{Role: n}}}, time.Second,
			&tunnel.DialError{Failure: tunnel.FailDenied, Reason: n})
	}
	for _, width := range []int{1280, 375} {
		b := openTab(t)
		b.size(width, 900, width == 375)
		b.open(s.url())
		b.until("the rows", `document.querySelectorAll('#rows tr:not(.gap)').length === `+fmt.Sprint(len(names)))
		b.until("the failures", `document.querySelectorAll('#failures li').length === `+fmt.Sprint(len(names)))
		b.until("the peers", `document.querySelectorAll('#right .peer').length > 0`)
		for i := range names {
			b.eval(fmt.Sprintf(`document.querySelector('#rows tr[data-id="%d"] button').click()`, i))
			b.until("the hops", `document.querySelectorAll('#hops li').length >= 3`)
			b.eval(`document.querySelector('#detail').close()`)
		}
		testutil.Equal(t, b.eval(`window.hacked === undefined && document.querySelectorAll('main script, main img, svg[onload], a[href^=javascript]').length === 0`),
			"true", "no name became part of the page")
		text := b.eval(`document.body.textContent`)
		for _, shown := range []string{names[0], `\u202egnp.exe`, `zero\u200bwidth`, `tag\udb40\udc41`, `nul\u0000and\u001b[31mred`, "bücher.test", "日本語.test"} {
			testutil.Contains(t, text, shown, "the page")
		}
		testutil.Holds(t, !strings.ContainsAny(text, "\u202e\u200b\U000e0041\x00\x1b"),
			"characters that cannot be seen are on the page")
		testutil.Equal(t, b.eval(`document.documentElement.scrollWidth`), fmt.Sprint(width),
			"the page's width, with long names")
		b.picture(fmt.Sprint("hostile-", width), true)
		b.quiet(s.url())
	}
}

// The page may do nothing but load its own files and ask its own API.
func TestThePolicyHolds(t *testing.T) {
	s := newScene(t, nil)
	b := openTab(t)
	b.open(s.url())
	b.eval(`(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s); document.body.setAttribute('onclick', 'window.hacked = 1'); document.body.click(); })()`)
	testutil.Equal(t, b.eval(`String(window.hacked)`), "undefined", "what an inline script sets")
	testutil.Equal(t, b.eval(`fetch('http://127.0.0.1:1/').then(() => 'asked', e => 'refused')`), "refused",
		"a request to elsewhere")
	testutil.Holds(t, len(b.faults) >= 3 && strings.Contains(strings.Join(b.faults, ""), "Content Security Policy"),
		"the browser did not refuse by the policy: %q", b.faults)
}

// lasting is a connection that outlives its links.
type lasting struct {
	atomic.Pointer[tunnel.ResumeStatus]
}

func (l *lasting) ResumeStatus() tunnel.ResumeStatus { return *l.Load() }

func TestAConnectionIsResumed(t *testing.T) {
	s := newScene(t, nil)
	l := new(lasting)
	l.Store(&tunnel.ResumeStatus{Lost: time.Now()})
	s.connect(&tunnel.Flow{Request: tunnel.Request{ID: "id-lost", Front: "socks5", Address: "db.prod.svc:5432"}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "server", ID: "server-1"}, Resumable: l}}, 0, 0)
	s.crowd(3)
	b := openTab(t)
	b.size(1280, 900, false)
	b.open(s.url())
	b.until("the pause", `document.querySelector('#rows tr[data-id=id-lost].resuming .c-state')?.textContent.startsWith('resuming ')`)
	b.until("it in the whole", `document.querySelector('#self-more').textContent === '▲ 1 resuming of 4 connections'`)
	b.eval(`document.querySelector('#rows tr.resuming button').click()`)
	b.until("the pause in words", `document.querySelector('#detail-state').textContent.startsWith('↻ Its link was lost.')`)
	b.picture("resuming-light-1280", false)
	l.Store(&tunnel.ResumeStatus{Resumes: 2, Hop: tunnel.Hop{Role: "server", ID: "server-2"}})
	b.until("its new hop", `document.querySelector('#hops').textContent.includes('server server-2') && document.querySelector('#facts').textContent.includes('2 times by another link')`)
	b.until("nothing that waits", `document.querySelector('#rows tr.resuming') === null && document.querySelector('#self-more').textContent === '4 connections'`)
	b.quiet(s.url())
}
