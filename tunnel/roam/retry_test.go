package roam_test

import (
	"context"
	"testing"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/roam"
)

// A dial that is tried again, since the answer to the first was lost with its
// link, makes a connection that outlives links like any other.
func TestRetriedDialOutlivesLinks(t *testing.T) {
	w := newWorld(t, 1, 2*time.Second)
	w.dest = hashEcho(t)
	retry := tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if _, err := w.Dial(ctx, f); err != nil {
			t.Error(err)
		}
		w.servers[0].cut(true)
		w.servers[0].linkNear()
		f.Resume.Renew()
		return w.Dial(ctx, f)
	})
	c, err := w.opener.Dialer(retry).Dial(context.Background(), tunnel.NewFlow("tcp", "dest:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, lasts := c.(*roam.Conn); !lasts {
		t.Error("a plain connection")
	}
}
