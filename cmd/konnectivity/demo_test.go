package main

import (
	"io"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// A part that fails ends all others: nothing waits for Ctrl-C beside a dead server.
func TestDemoEndsWithAnyPart(t *testing.T) {
	d := testutil.Must(newDemo(t.TempDir()))(t)
	d.log.SetOutput(io.Discard)
	_ = d.ports.agents.Close()
	ctx := testutil.Context(t)
	if err := d.serve(ctx); ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), d.ports.agents.Addr().String()) {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}
