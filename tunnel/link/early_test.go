package link

import (
	"sync"
	"testing"
	"time"
)

// What is acknowledged while an earlier acknowledgement is passed on comes behind
// that, and not before it: the last word counts.
func TestEarlyAcksKeepTheirOrder(t *testing.T) {
	stream := func() *Stream { return &Stream{ses: &Session{out: sender{over: true}}, state: open} } // sends nothing
	near, far := stream(), stream()
	near.carry.lasts = true
	newer := Ack{Offset: 1, Big: true}
	far.carry.early = &Ack{Offset: 1}
	near.ses.mu.Lock() // keeps it from being passed on
	var passing sync.WaitGroup
	passing.Go(func() { near.carriedOn(far) })
	far.ses.mu.Lock()
	for far.carry.early != nil {
		far.ses.mu.Unlock()
		time.Sleep(time.Millisecond)
		far.ses.mu.Lock()
	}
	if far.carry.next != nil {
		t.Error("what comes now is passed on at once")
	}
	far.carry.early = &newer // as what comes now
	far.ses.mu.Unlock()
	near.ses.mu.Unlock()
	passing.Wait()
	if near.send.out.ack != newer || far.carry.next != near || far.carry.early != nil {
		t.Errorf("the last that was passed on is %+v, want %+v", near.send.out.ack, newer)
	}
}
