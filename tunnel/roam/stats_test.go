package roam

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
)

// However many connections a link had, one line tells of its loss.
func TestOneLineForAllOfALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, hook := test.NewNullLogger()
		e := New(Options{Window: time.Second, Log: log})
		for range 1000 {
			e.left()
		}
		time.Sleep(tellAfter / 2)
		for range 999 {
			e.resumed(tellAfter / 2)
		}
		time.Sleep(time.Hour)
		e.left()
		time.Sleep(time.Hour)
		entries := hook.AllEntries()
		if len(entries) != 2 {
			t.Fatalf("%d lines", len(entries))
		}
		want := logrus.Fields{"lost": int64(1000), "resumed": int64(999), "given_up": int64(0), "waiting": int64(1)}
		for name, n := range want {
			if entries[0].Data[name] != n {
				t.Errorf("%s is %v, want %v", name, entries[0].Data[name], n)
			}
		}
		if entries[1].Data["lost"] != int64(1) || entries[1].Data["resumed"] != int64(0) {
			t.Errorf("the second tells of the first again: %v", entries[1].Data)
		}
	})
}
