package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
)

// with returns the messages of the lines of a log whose field id is id.
func with(id, log string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(log) {
		var fields struct{ ID, Msg string }
		if json.Unmarshal([]byte(line), &fields) == nil && fields.ID == id {
			out[fields.Msg] = true
		}
	}
	return out
}

// The trace-id of a request leads through the logs of sidecar, server and
// agent, over the native link.
func TestIDInLogsOfEveryHop(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	d := testutil.Must(newDemo(t.TempDir()))(t)
	logged := &testutil.Output{}
	d.log.SetOutput(logged)
	d.log.SetLevel(logrus.DebugLevel)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- d.serve(ctx) }()
	t.Cleanup(func() { cancel(); <-served })
	d.waitReady(t.Context())
	c := testutil.Must(net.Dial("tcp", d.ports.http.Addr().String()))(t)
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\ntraceparent: 00-%s-b7ad6b7169203331-01\r\n\r\n", d.ports.web.Addr(), trace)
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "HTTP/1.1 200 Connection Established\r\n" {
		t.Fatal(line, err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
	for hop, message := range map[string]string{
		"sidecar": "request ended", "server": "connection ended", "server's choice of an agent": "agent dialed", "agent": "connected to destination",
	} {
		testutil.Eventually(t, "a line of the "+hop+" with the id: "+message, func() bool { return with(trace, logged.String())[message] })
	}
}

// A part that fails ends all others: nothing waits for Ctrl-C beside a dead server.
func TestDemoEndsWithAnyPart(t *testing.T) {
	d := testutil.Must(newDemo(t.TempDir()))(t)
	d.log.SetOutput(io.Discard)
	_ = d.ports.agents.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.serve(ctx); ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), d.ports.agents.Addr().String()) {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}
