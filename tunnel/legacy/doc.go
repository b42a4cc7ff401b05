// Package legacy speaks the konnectivity packet protocol over gRPC, so that old
// agents, old servers and kube-apiserver's gRPC mode work with this suite. It
// has the protocol's three roles, and each gives or takes a tunnel.Conn, so
// that nothing above knows packets:
//
//   - AgentService accepts agents; each is an AgentPeer, a tunnel.Dialer.
//   - ConnectAgent is the agent's side of that; a tunnel.Forwarder serves what
//     the server asks for.
//   - ProxyService accepts frontends (kube-apiserver); a tunnel.Forwarder
//     serves them.
//
// The facts are from konnectivity-client's client.proto and, in
// kubernetes-sigs/apiserver-network-proxy, pkg/server/server.go and
// pkg/agent/client.go.
//
// Sessions, peers and services own their connections and goroutines; the gRPC
// servers and connections are their callers' (server/grpc.go, agent/legacysession.go).
//
// # Memory
//
// The protocol has no credit. The connections of one agent share one gRPC
// stream, so what a connection holds is bounded here (Limits, recvQueue):
//
//   - A connection whose reader takes nothing while it is full is reset after
//     stallTimeout (CodeStalled). It costs its neighbours one pause, of 5 s at
//     most.
//   - A connection may hold a quarter of what the budget has left, at least
//     connBuffer. For a reader that moves, but slower than data comes, the
//     stream pauses until it has made room: there is no other way to slow the
//     sender, and a reset would cut every download that is slower than its
//     source. At twice its share it is reset.
//
// # How connections begin
//
// An old client drops packets of a connection that it reads before its dialing goroutine has
// noted DIAL_RSP. So data and the end of a server's conn wait behind a gate (sendQueue):
// with a frontend until it speaks, or has answered two questions (gate.go); with an
// upstream server, which tells nothing, for firstData.
//
// # How connections end
//
// The protocol has no half-close: CLOSE_REQ, which the opener of a connection
// sends, and CLOSE_RSP, which its server sends, end both directions. Between our
// own programs metadata (konnectivity-half-close) agrees on a better meaning: each
// ends one direction, and DIAL_CLS or a CLOSE_RSP with an error resets both.
//
// So a conn has one of four roles: it is the opener's end (at a server, toward an
// agent) or the server's (at an agent, or at a server toward a frontend), and its
// peer is an old one or knows half-close. A closer decides how it ends. The closing
// packet below is CLOSE_REQ of an opener and CLOSE_RSP of a server; the packet that
// drops a connection is CLOSE_REQ, with half-close DIAL_CLS, and of a server
// CLOSE_RSP with an error. The states:
//
//	open        both directions carry bytes
//	awaiting    ended here; CLOSE_REQ is held back, no byte of the answer has come
//	answered    ended here; CLOSE_REQ is held back while the answer comes
//	settling    ended here; CLOSE_REQ is held back while data reaches the destination
//	closing     ended here; the closing packet is queued or sent
//	halfClosed  ended here; the closing packet is sent
//	answering   ended there; this side goes on
//	finishing   ended both ways; the closing packet is queued
//	unheard     ended there, and its stream is dead: writes are dropped
//	lingering   ended both ways, as unheard; received bytes are still delivered
//	resetting   the closing packet is queued, with an error
//	dropping    the peer was told to drop the connection
//	delivering  forgotten by the mux; received bytes are still delivered
//	over        forgotten by the mux
//
// Of the rules for a state and an event the first whose condition holds counts. When
// the next look has come the event is due; a rule without a next look stops the timer.
// When the gRPC stream is lost, every state goes over.
//
// An opener with an old peer must not send CLOSE_REQ while an answer may still come.
// So CloseWrite holds it back: 10 s for the first byte of the answer (unanswered means
// that data was written after data last came), then until the answer pauses for 2 s.
// It is hasty where the frontend awaits no answer; CLOSE_REQ
// then waits 500 ms, since upstream's agents drop what they have not yet written to the
// destination. Everything that the agent had read by then still arrives. A destination
// that answers only once it has seen the end of the request is served with half-close
// alone.
//
// Opener, old peer:
//
//	state                                             on           if            then      does           next look
//	open                                              CloseWrite   hasty         settling                 500ms
//	open                                              CloseWrite   unanswered    awaiting                 2s
//	open                                              CloseWrite                 answered                 2s
//	awaiting answered                                 due          moving        answered                 2s
//	awaiting                                          due          before 10 s   awaiting                 2s
//	awaiting answered settling                        due                        closing   queue close    10s
//	awaiting answered settling                        hasten                     settling                 500ms
//	open awaiting answered settling                   Close        unanswered    settling                 500ms
//	open awaiting answered settling                   Close                      closing   queue close    10s
//	closing                                           Close                      closing                  10s
//	closing                                           due          moving, read  closing                  10s
//	open awaiting answered settling closing           Reset                      dropping  drop, discard  10s
//	closing dropping                                  due                        over      forget
//	open awaiting answered settling closing dropping  peer ends                  over      forget
//	open awaiting answered settling closing dropping  peer resets                over      forget
//
// Opener, peer with half-close:
//
//	state                                                 on           if  then        does           next look
//	open                                                  CloseWrite       closing     queue close
//	open                                                  Close            closing     queue close    10s
//	open                                                  peer ends        answering
//	closing                                               Close            closing                    10s
//	closing                                               sent             halfClosed                 as it was
//	closing                                               peer ends        finishing                  as it was
//	halfClosed                                            Close            halfClosed                 10s
//	halfClosed dropping                                   peer ends        over        forget
//	answering                                             CloseWrite       finishing   queue close
//	answering                                             Close            finishing   queue close    10s
//	finishing                                             Close            finishing                  10s
//	finishing                                             sent             over        forget
//	closing halfClosed finishing                          due              dropping    drop, discard  10s
//	closing halfClosed finishing                          DATA             dropping    drop, discard  10s
//	open closing halfClosed answering finishing           Reset            dropping    drop, discard  10s
//	dropping                                              due              over        forget
//	open closing halfClosed answering finishing dropping  peer resets      over        forget
//
// A server with an old peer answers CLOSE_REQ once the destination is done: when it
// ends, or when nothing was written for 100 ms and everything was read; it is busy
// until then, 8 s at most, and bytes yet to be delivered have 30 s more. CloseWrite sends
// CLOSE_RSP at once: the peer's client may wait for the end of the answer.
//
// Server, old peer:
//
//	state                           on          if          then        does                   next look
//	open                            CloseWrite              closing     queue close
//	open                            Close                   closing     queue close
//	open                            peer ends               answering                          100ms
//	closing                         sent                    over        forget
//	closing                         peer ends               finishing
//	answering                       due         busy        answering                          100ms
//	answering                       due                     lingering   queue close, mute      30s
//	answering                       CloseWrite              finishing   queue close
//	answering                       Close                   finishing   queue close
//	answering unheard               orphaned                unheard     mute                   30s
//	unheard                         CloseWrite              lingering   queue close            as it was
//	unheard                         Close                   lingering   queue close
//	unheard                         due                     unheard     cancel
//	open closing answering unheard  Reset                   resetting   queue reset            30s
//	resetting                       sent                    over        forget
//	resetting                       due                     over        drop, discard, forget
//	finishing lingering             orphaned    not closed  lingering   mute                   30s
//	finishing lingering             sent                    delivering  forget                 as it was
//	finishing lingering             Reset                   delivering  drop, discard, forget
//	lingering                       due                     lingering   cancel
//	delivering                      orphaned    not closed  delivering  mute                   30s
//	delivering                      due                     delivering  cancel
//
// Server, peer with half-close:
//
//	state                                   on          if  then        does                   next look
//	open                                    CloseWrite      closing     queue close
//	open                                    Close           closing     queue close            10s
//	open                                    peer ends       answering
//	closing                                 Close           closing                            10s
//	closing                                 sent            halfClosed                         as it was
//	closing                                 peer ends       finishing                          as it was
//	halfClosed                              Close           halfClosed                         10s
//	halfClosed                              peer ends       delivering  forget
//	closing halfClosed finishing            due             over        forget
//	halfClosed                              Reset           over        drop, forget
//	answering                               CloseWrite      finishing   queue close
//	answering                               Close           finishing   queue close
//	finishing                               sent            delivering  forget
//	finishing                               Reset           delivering  drop, discard, forget
//	open closing answering                  Reset           resetting   queue reset            30s
//	resetting                               sent            over        forget
//	resetting                               due             over        drop, discard, forget
//	closing halfClosed finishing resetting  DATA            over        drop, forget
package legacy
