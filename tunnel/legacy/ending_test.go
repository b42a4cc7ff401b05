package legacy

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

func TestPhasesOfAnEnding(t *testing.T) {
	for name, c := range map[string]struct {
		steps []step
		want  phase
	}{
		"nothing yet":                        {nil, flowing},
		"ended here":                         {[]step{queue}, closing},
		"ended here, an answer awaited":      {[]step{hold}, holding},
		"the answer is complete":             {[]step{hold, queue}, closing},
		"ended there":                        {[]step{peerEnd}, answering},
		"ended here, then there":             {[]step{queue, peerEnd}, finishing},
		"ended there, then here":             {[]step{peerEnd, queue}, finishing},
		"ended both ways, and sent":          {[]step{peerEnd, queue, forget}, lingering},
		"answering, and lost":                {[]step{peerEnd, forget}, lingering},
		"flowing, and lost":                  {[]step{forget}, over},
		"ended here, and confirmed":          {[]step{queue, forget}, over},
		"given up":                           {[]step{queue, tell}, told},
		"given up, and not confirmed either": {[]step{queue, tell, forget}, over},
		"ended here twice":                   {[]step{queue, queue}, closing},
		"held back too late":                 {[]step{queue, hold}, closing},
		"held back twice":                    {[]step{hold, hold}, holding},
		"ended there twice":                  {[]step{peerEnd, peerEnd}, answering},
		"told, then heard of the end":        {[]step{tell, peerEnd}, told},
		"told twice":                         {[]step{tell, tell}, told},
		"over for good":                      {[]step{forget, hold, queue, peerEnd, tell, forget}, over},
		"lingering for good":                 {[]step{peerEnd, forget, hold, queue, peerEnd, tell, forget}, lingering},
	} {
		t.Run(name, func(t *testing.T) {
			var e ending
			for _, s := range c.steps {
				before := e.phase
				if changed := e.take(s); changed != (e.phase != before) {
					t.Errorf("step %d at %v: changed = %v", s, before, changed)
				}
			}
			if e.phase != c.want {
				t.Errorf("the ending is %v, want %v", e.phase, c.want)
			}
		})
	}
}

// What each side makes of the phases: the packets it sends at once, and where
// that leaves the connection.
func TestEndings(t *testing.T) {
	const data, request, response, drop = client.PacketType_DATA, client.PacketType_CLOSE_REQ, client.PacketType_CLOSE_RSP, client.PacketType_DIAL_CLS
	open := func(play func(c *opened)) func(*wire, bool) func() ending {
		return func(w *wire, duplex bool) func() ending {
			c := newOpened(w.mux, 1, 1, duplex, "a:1")
			_, _ = w.add(1, c)
			play(c)
			return func() ending { c.mu.Lock(); defer c.mu.Unlock(); return c.end }
		}
	}
	serve := func(play func(c *served)) func(*wire, bool) func() ending {
		return func(w *wire, duplex bool) func() ending {
			c := newServed(w.mux, 1, duplex, "a:1", func(error) {})
			_, _ = w.add(1, c)
			play(c)
			return func() ending { c.mu.Lock(); defer c.mu.Unlock(); return c.end }
		}
	}
	type result struct {
		phase phase
		sent  []client.PacketType
	}
	sends := func(p phase, kinds ...client.PacketType) result { return result{p, kinds} }
	for name, c := range map[string]struct {
		play        func(*wire, bool) func() ending
		duplex, old result
	}{
		"opened, half-closed": {
			open(func(c *opened) { _ = c.CloseWrite() }),
			sends(closing, request), sends(holding)},
		"opened, half-closed in haste": {
			open(func(c *opened) { c.hasten(); _ = c.CloseWrite() }),
			sends(closing, request), sends(holding)},
		"opened, closed": {
			open(func(c *opened) { _ = c.Close() }),
			sends(closing, request), sends(closing, request)},
		"opened, closed behind data": {
			open(func(c *opened) { _, _ = c.Write([]byte("x")); _ = c.Close() }),
			sends(closing, data, request), sends(holding, data)},
		"opened, reset": {
			open(func(c *opened) { _ = c.Reset(nil); _ = c.Reset(nil) }),
			sends(told, drop), sends(told, request)},
		"opened, ended there": {
			open(func(c *opened) { c.responded("") }),
			sends(answering), sends(over)},
		"opened, ended there, then half-closed": {
			open(func(c *opened) { c.responded(""); _ = c.CloseWrite() }),
			sends(lingering, request), sends(over)},
		"opened, ended there, then closed": {
			open(func(c *opened) { c.responded(""); _ = c.Close() }),
			sends(lingering, request), sends(over)},
		"opened, half-closed, then ended there": {
			open(func(c *opened) { _ = c.CloseWrite(); c.responded("") }),
			sends(lingering, request), sends(over)},
		"opened, reset there": {
			open(func(c *opened) { c.responded("broken") }),
			sends(over), sends(over)},
		"opened, told, then confirmed": {
			open(func(c *opened) { _ = c.Reset(nil); c.responded("") }),
			sends(over, drop), sends(over, request)},
		"opened, closed, and more comes": {
			open(func(c *opened) { _ = c.Close(); synctest.Wait(); c.receive(chunks(1, 10)) }),
			sends(told, request, drop), sends(closing, request)},
		"served, half-closed": {
			serve(func(c *served) { _ = c.CloseWrite() }),
			sends(closing, response), sends(over, response)},
		"served, closed": {
			serve(func(c *served) { _ = c.Close(); _ = c.Close() }),
			sends(closing, response), sends(over, response)},
		"served, reset": {
			serve(func(c *served) { _ = c.Reset(nil) }),
			sends(over, response), sends(over, response)},
		"served, ended there": {
			serve(func(c *served) { c.closeRequested() }),
			sends(answering), sends(answering)},
		"served, ended there, then half-closed": {
			serve(func(c *served) { c.closeRequested(); _ = c.CloseWrite() }),
			sends(lingering, response), sends(lingering, response)},
		"served, half-closed, then ended there": {
			serve(func(c *served) { _ = c.CloseWrite(); synctest.Wait(); c.closeRequested() }),
			sends(lingering, response), sends(over, response)},
		"served, ended there twice": {
			serve(func(c *served) { c.closeRequested(); c.closeRequested() }),
			sends(lingering, response), sends(answering)},
		"served, half-closed, then reset": {
			serve(func(c *served) { _ = c.CloseWrite(); synctest.Wait(); _ = c.Reset(nil) }),
			sends(over, response, response), sends(over, response)},
		"served, closed, and more comes": {
			serve(func(c *served) { _ = c.Close(); synctest.Wait(); c.receive(chunks(1, 10)) }),
			sends(over, response, response), sends(over, response)},
	} {
		for kind, duplex := range map[string]bool{"duplex": true, "old": false} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					want := c.old
					if duplex {
						want = c.duplex
					}
					w := newWire(Limits{})
					defer w.end()
					look := c.play(w, duplex)
					synctest.Wait()
					end := look()
					if end.phase != want.phase {
						t.Errorf("the ending is %v, want %v", end.phase, want.phase)
					}
					if got := w.kinds(); !slices.Equal(got, want.sent) {
						t.Errorf("it sent %v, want %v", got, want.sent)
					}
					if known := w.count() == 1; known == end.forgotten() {
						t.Errorf("%v, and the mux knows it: %v", end.phase, known)
					}
					time.Sleep(time.Minute) // whatever waits has a bound; answering is the holder's to end
					synctest.Wait()
					end = look()
					if !end.forgotten() && end.phase != answering && !(duplex && end.phase == closing && !end.closed) {
						t.Errorf("the connection is still %v after a minute", end.phase)
					}
				})
			})
		}
	}
}

// kinds are the packets that were sent.
func (w *wire) kinds() (kinds []client.PacketType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.sent {
		kinds = append(kinds, p.kind)
	}
	return kinds
}
