package server

import (
	"context"
	"testing"
	"time"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
)

// agentInMemory connects to nothing, and says that it did.
type agentInMemory struct{}

func (a agentInMemory) Dial(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, nil }
func (a agentInMemory) Life() context.Context                                   { return context.Background() }
func (a agentInMemory) Drains() context.Context                                 { return context.Background() }
func (a agentInMemory) Streams() int                                            { return 0 }
func (a agentInMemory) RTT() time.Duration                                      { return 0 }
func (a agentInMemory) Err() error                                              { return nil }

// Until a server's startup is over, a dial waits for an agent that serves it.
func TestDialsWaitForAgentsThatHaveYetToCome(t *testing.T) {
	const host = "10.0.0.1:10250"
	for name, c := range map[string]struct {
		before, after string // identifiers of an agent that is there, and of one that joins after 3 s; "": none
		begins        time.Duration
		patience      time.Duration // of the client; 0: no bound
		drains        time.Duration // 0: never
		origin        string        // another server that asks
		served        bool
		took          time.Duration
	}{
		"the first":                {"", "ipv4=10.0.0.1", 0, 0, 0, "", true, 3 * time.Second},
		"the one that serves":      {"ipv4=10.0.0.2", "ipv4=10.0.0.1", 0, 0, 0, "", true, 3 * time.Second},
		"it is there":              {"ipv4=10.0.0.1", "", 0, 0, 0, "", true, 0},
		"another joins":            {"", "ipv4=10.0.0.2", 0, 0, 0, "", false, DefaultSettle},
		"none":                     {"", "", time.Second, 0, 0, "", false, DefaultSettle - time.Second},
		"once it is over":          {"", "", DefaultSettle, 0, 0, "", false, 0},
		"a client that gives up":   {"", "", 0, time.Second, 0, "", false, time.Second},
		"a server that is stopped": {"", "", 0, 0, time.Second, "", false, time.Second},
		"another server asks":      {"", "ipv4=10.0.0.1", 0, 0, 0, "b", false, 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			drains, drain := context.WithCancel(t.Context())
			s := &Server{opts: Options{Settle: DefaultSettle}, drains: drains}
			start := s.newStartup()
			agents := registry.New(start.over, []registry.Strategy{registry.DestHost}, logging.Silent())
			join := func(identifiers string) {
				if identifiers == "" {
					return
				}
				parsed, err := registry.ParseIdentifiers(identifiers)
				testutil.NoError(t, err)
				joined := agents.Join(registry.Agent{ID: identifiers, Identifiers: parsed}, agentInMemory{})
				t.Cleanup(func() { joined.Leave() })
			}
			join(c.before)
			time.AfterFunc(3*time.Second, func() { join(c.after) })
			if c.drains > 0 {
				time.AfterFunc(c.drains, drain)
			}
			time.Sleep(c.begins)
			ctx := t.Context()
			if c.patience > 0 {
				bounded, cancel := context.WithTimeout(ctx, c.patience)
				defer cancel()
				ctx = bounded
			}
			f := tunnel.NewFlow("tcp", host)
			f.Origin.Server = c.origin
			began := time.Now()
			_, err := agents.Dial(ctx, f)
			if took := time.Since(began); took != c.took || c.served != (err == nil) || err != nil && tunnel.FailureOf(err) != tunnel.FailNoAgent {
				t.Errorf("%v after %v", err, took)
			}
			time.Sleep(2 * DefaultSettle)
			drain()
		})
	}
	if DefaultSettle >= tunnel.DefaultDialTimeout {
		t.Errorf("dials time out in %v, before they hear that there is no agent", tunnel.DefaultDialTimeout)
	}
}
