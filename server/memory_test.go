package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"konnectivity/internal/testutil"
	"konnectivity/server/limits"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// Agents' connections take memory by being there, as do their identifiers; one that
// there is none left for hears so, and all is given back.
func TestAgentsTakeOfTheirRoom(t *testing.T) {
	t.Parallel() // it waits
	const max = 20 * limits.AgentMemory
	for _, kind := range []string{"link", "grpc"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := startServer(t, func(o *Options) { o.AgentMemory = max })
			var many strings.Builder
			for i := range max / limits.IdentifierMemory {
				fmt.Fprintf(&many, "host=%d.test&", i)
			}
			if _, err := r.tryAgent(kind, agentHello{id: "a", identifiers: many.String()}, echoing); err == nil || !strings.Contains(err.Error(), errNoAgentRoom.Reason) {
				t.Errorf("an agent with many identifiers: %v", err)
			}
			testutil.Equal(t, r.limits.Agents.Used(), 0, "bytes that one who was refused keeps")
			in := 0
			for i := range 24 {
				if _, err := r.tryAgent(kind, agentHello{id: fmt.Sprint("a", i)}, echoing); err == nil {
					in++
				}
			}
			if in < 15 || in > 20 {
				t.Errorf("%d agents got in, of %d that there is room for", in, max/limits.AgentMemory)
			}
			r.roundTrip(r.mustDial("link", "echo:1"), 100)
			r.givesBack(r.limits.Agents.Used)
		})
	}
}

// So does an agent's header.
func TestAgentsHeadersTakeOfTheirRoom(t *testing.T) {
	const max = 40 * limits.AgentMemory
	r := startServer(t, func(o *Options) { o.AgentMemory = max })
	conn, err := grpc.NewClient(r.agentAt, grpc.WithTransportCredentials(credentials.NewTLS(r.tls())),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(fullOfNames(ctx), d, c, method, opts...)
		}))
	testutil.NoError(t, err)
	defer conn.Close()
	s := testutil.Must(legacy.ConnectAgent(t.Context(), conn, legacy.AgentConfig{ID: "a", Forwarder: forwarder(echoing)}))(t)
	if used := r.limits.Agents.Used(); used < limits.AgentMemory+128<<10 {
		t.Errorf("an agent whose header is full takes %d bytes", used)
	}
	_ = s.Close()
	r.eventually("all is given back", func() bool { return r.limits.Agents.Used() == 0 })
}

// stuffed is a certificate that is full of names.
func stuffed(t *testing.T) []byte {
	t.Helper()
	names := bytes.Repeat([]byte{0x86, 0}, 1<<10)
	key := testutil.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtraExtensions: []pkix.Extension{{
		Id: []int{2, 5, 29, 17}, Value: append([]byte{0x30, 0x82, byte(len(names) >> 8), byte(len(names))}, names...),
	}}}
	return testutil.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
}

// What a client's certificates take beyond what is usual counts as its memory.
func TestCertificatesTakeOfTheBudget(t *testing.T) {
	const max = 1 << 20
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(max) })
	usual := r.tls(link.ALPN)
	leaf := testutil.Must(x509.ParseCertificate(usual.Certificates[0].Certificate[0]))(t)
	if extra := limits.CertMemory(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf, leaf, leaf}}); extra != 0 {
		t.Errorf("an ordinary chain takes %d bytes more than is usual", extra)
	}
	heavy := usual.Clone()
	heavy.Certificates[0].Certificate = append(heavy.Certificates[0].Certificate, stuffed(t))
	in := 0
	for range 20 {
		if _, err := r.clientLinkAs(heavy, link.Hello{Role: link.RoleClient}); err == nil {
			in++
		}
	}
	if in < 3 || in > 7 { // of some 170 KiB each
		t.Errorf("%d links got in", in)
	}
	r.givesBack(r.opts.Budget.Used)
}
