package legacy

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// mux is the connections that share one gRPC stream.
type mux struct {
	limits     Limits
	metrics    Metrics
	log        logrus.FieldLogger
	inbound    Segment
	sender     *sender
	localAddr  string
	remoteAddr string

	mu    sync.Mutex
	conns map[int64]*conn
	lost  error // set once: no connection can be added any more
}

func newMux(send func(any) error, inbound, outbound Segment, limits Limits, metrics Metrics, log logrus.FieldLogger) *mux {
	m := &mux{limits: limits, metrics: metrics, log: log, inbound: inbound, conns: map[int64]*conn{}}
	m.sender = newSender(send, outbound, &m.limits, metrics)
	return m
}

// add makes a connection known; false when its id is taken.
func (m *mux) add(id int64, c *conn) (ok bool, lost error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		return false, m.lost
	}
	if _, taken := m.conns[id]; taken {
		return false, nil
	}
	m.conns[id] = c
	return true, nil
}

func (m *mux) remove(id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, id)
}

func (m *mux) get(id int64) *conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conns[id]
}

func (m *mux) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns)
}

// lose ends all connections, with what they received still to be read.
func (m *mux) lose(err error) {
	m.sender.stop(err)
	m.mu.Lock()
	conns := m.conns
	m.conns, m.lost = map[int64]*conn{}, err
	m.mu.Unlock()
	for _, c := range conns {
		c.lost(err)
	}
}

// read hands packets over until the stream ends; nil means in order. DATA for
// an unknown connection goes to unknown.
func (m *mux) read(recv func(any) error, handle func(*client.Packet), unknown func(id int64)) error {
	var p packet
	for {
		p = packet{data: p.data[:0]}
		if err := recv(&p); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			m.metrics.StreamError(m.inbound, status.Code(err), NoPacket)
			return err
		}
		m.metrics.Packet(m.inbound, known(p.kind))
		if p.kind != client.PacketType_DATA {
			handle(p.rest)
			continue
		}
		switch c := m.get(p.id); {
		case c != nil:
			c.receive(p.data)
		default:
			tunnel.ReleaseAll(p.data)
			if p.id != 0 { // 0 is no connection; upstream ignores it too
				unknown(p.id)
			}
		}
	}
}

// orderly says whether a stream ended because one side meant it to.
func orderly(err error) bool {
	return err == nil || status.Code(err) == codes.Canceled
}

// quiet is the log of a stream that has none.
func quiet(context.Context) logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}
