package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// carrier is a flow that carries a connection through a server from link to link.
func carrier(token byte, epoch uint32) *tunnel.Flow {
	f := newFlow()
	f.ID, f.Opened = fmt.Sprint(token), time.Now()
	f.Resume = &tunnel.Resume{Token: [16]byte{token}, Window: 10 * time.Second, Epoch: epoch, Granted: tunnel.Grant{Window: 30 * time.Second}}
	return f
}

// told takes the queued records, each in a few words.
func told(t *testing.T, l *Log) (all []string) {
	t.Helper()
	for _, chunk := range l.queue.take(l.head) {
		for text := range strings.Lines(string(chunk)) {
			var r struct {
				Event, ID, End   string
				UpBytes, Resumes int
				Resumed          bool
				Seconds          float64
			}
			testutil.NoError(t, json.Unmarshal([]byte(text), &r))
			switch {
			case r.Event == closed:
				all = append(all, fmt.Sprintf("closed %s: %s, %d bytes, %d resumes, %v, %.0f s", r.ID, r.End, r.UpBytes, r.Resumes, r.Resumed, r.Seconds))
			default:
				all = append(all, fmt.Sprintf("%s %s, %v", r.Event, r.ID, r.Resumed))
			}
		}
	}
	return all
}

func TestOneRecordForAllCarriers(t *testing.T) {
	cut := tunnel.Lost(tunnel.LossCut)
	type flow = *tunnel.Flow
	closes := func(l *Log, f flow, err error) {
		f.Carry(true, 10)
		l.Closed(f, time.Since(f.Opened), err)
	}
	for name, c := range map[string]struct {
		do   func(l *Log)
		want []string
	}{
		"in order": {func(l *Log) {
			a := carrier(1, 0)
			l.Opened(a)
			time.Sleep(2 * time.Second)
			closes(l, a, nil)
		}, []string{"opened 1, false", "closed 1: complete, 10 bytes, 0 resumes, false, 2 s"}},
		"resumed": {func(l *Log) {
			a, other := carrier(1, 0), carrier(2, 0)
			l.Opened(a)
			l.Opened(other)
			closes(l, a, cut)
			time.Sleep(9 * time.Second)
			b := carrier(1, 1)
			l.Opened(b)
			closes(l, b, cut)
			closes(l, other, &tunnel.ResetError{Code: tunnel.CodePeerReset})
			time.Sleep(20 * time.Second)
			b = carrier(1, 2)
			l.Opened(b)
			time.Sleep(time.Hour)
			closes(l, b, nil)
		}, []string{"opened 1, false", "opened 2, false", "closed 2: peer_reset, 10 bytes, 0 resumes, false, 9 s", "closed 1: complete, 30 bytes, 2 resumes, false, 3629 s"}},
		"resumed before the loss was noticed": {func(l *Log) {
			a, b := carrier(1, 0), carrier(1, 1)
			l.Opened(a)
			l.Opened(b)
			closes(l, b, nil)
			time.Sleep(time.Second)
			closes(l, a, cut)
			time.Sleep(time.Hour)
		}, []string{"opened 1, false", "closed 1: complete, 20 bytes, 1 resumes, false, 0 s"}},
		"resumed after its end": {func(l *Log) {
			a := carrier(1, 0)
			l.Opened(a)
			closes(l, a, nil)
			b := carrier(1, 1) // since the acknowledgement of the end was lost
			l.Opened(b)
			l.Closed(b, 0, nil)
		}, []string{"opened 1, false", "closed 1: complete, 10 bytes, 0 resumes, false, 0 s"}},
		"resumed elsewhere, or not at all": {func(l *Log) {
			a := carrier(1, 0)
			l.Opened(a)
			time.Sleep(time.Second)
			closes(l, a, cut)
			time.Sleep(29 * time.Second)
			l.spliced.mu.Lock()
			testutil.Equal(t, len(l.spliced.conns), 1, "connections wait within their window")
			l.spliced.mu.Unlock()
			time.Sleep(2 * time.Second)
		}, []string{"opened 1, false", "closed 1: lost, 10 bytes, 0 resumes, false, 1 s"}},
		"from elsewhere": {func(l *Log) {
			a := carrier(1, 3)
			l.Opened(a)
			closes(l, a, nil)
		}, []string{"opened 1, true", "closed 1: complete, 10 bytes, 0 resumes, true, 0 s"}},
		"the process ends": {func(l *Log) {
			a, b := carrier(1, 0), carrier(2, 0)
			l.Opened(a)
			l.Opened(b)
			closes(l, a, cut)
			l.spliced.end()
			closes(l, b, &tunnel.ResetError{Code: tunnel.CodeShutdown})
		}, []string{"opened 1, false", "opened 2, false", "closed 1: lost, 10 bytes, 0 resumes, false, 0 s", "closed 2: shutdown, 10 bytes, 0 resumes, false, 0 s"}},
		"by chance the same token, of another tenant": {func(l *Log) {
			a, b := carrier(1, 0), carrier(1, 0)
			b.Client = &tunnel.Client{Tenant: "red"}
			l.Opened(a)
			l.Opened(b)
			closes(l, b, nil)
			closes(l, a, nil)
		}, []string{"opened 1, false", "opened 1, false", "closed 1: complete, 10 bytes, 0 resumes, false, 0 s", "closed 1: complete, 10 bytes, 0 resumes, false, 0 s"}},
		"the same token for another destination, so that it would not be told": {func(l *Log) {
			a, b := carrier(1, 0), carrier(1, 0)
			b.ID, b.Address = "2", "10.9.9.9:22" // by another agent, which does not know the token
			l.Opened(a)
			l.Opened(b)
			closes(l, b, nil)
			closes(l, a, nil)
		}, []string{"opened 1, false", "opened 2, false", "closed 2: complete, 10 bytes, 0 resumes, false, 0 s", "closed 1: complete, 10 bytes, 0 resumes, false, 0 s"}},
		"more than may wait": {func(l *Log) {
			l.spliced.waiting = maxWaiting
			a := carrier(1, 0)
			l.Opened(a)
			closes(l, a, cut)
		}, []string{"opened 1, false", "closed 1: lost, 10 bytes, 0 resumes, false, 0 s"}},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			l, _ := openLog(t, Stdout)
			c.do(l)
			testutil.EqualSlices(t, told(t, l), c.want, "records")
			testutil.Holds(t, len(l.spliced.conns) == 0 && l.spliced.waiting%maxWaiting == 0,
				"%d are left, %d wait", len(l.spliced.conns), l.spliced.waiting)
		})
	}
}

// An end of a connection that outlives its links is one flow, whatever carries it.
func TestEndsAreOneFlow(t *testing.T) {
	l, _ := openLog(t, Stdout)
	f := newFlow()
	f.Resumable = end{}
	l.Opened(f)
	l.Closed(f, time.Second, nil)
	adopted := newFlow()
	adopted.Adopted = true
	l.Opened(adopted)
	l.Closed(adopted, time.Second, nil)
	want := []string{
		"opened 4bf92f3577b34da6, false", "closed 4bf92f3577b34da6: complete, 0 bytes, 3 resumes, false, 1 s",
		"opened 4bf92f3577b34da6, true", "closed 4bf92f3577b34da6: complete, 0 bytes, 0 resumes, true, 1 s",
	}
	testutil.EqualSlices(t, told(t, l), want, "records")
}

type end struct{}

func (end) ResumeStatus() tunnel.ResumeStatus {
	return tunnel.ResumeStatus{Resumes: 3, Hop: tunnel.Hop{Role: tunnel.RoleAgent, ID: "node2"}}
}
