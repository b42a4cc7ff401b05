package page

import (
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/tunnel"
)

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
